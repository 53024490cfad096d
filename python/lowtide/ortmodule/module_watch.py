"""What a captured graph assumes about its module's Python side: compared on each call."""

import enum

import torch

from lowtide.errors import UnsupportedError

_VALUES = (bool, int, float, str, type(None), enum.Enum, torch.dtype)


class ModuleWatch:
    """Module tree, plain attributes (eps, p, training …), and what parameters and buffers are; not their values."""

    def __init__(self, module):
        self._attributes = []  # (vars of a module, name, value)
        self._children = []  # (children of a module, how many, name, child)
        self._tables = []  # (parameters or buffers of a module, how many)
        self._buffers = []  # (buffers of a module, name, dtype, shape): any tensor of that type is as good
        self._tensors = []  # (table, name, tensor, requires_grad, dtype, shape)
        for child in module.modules():
            attributes = vars(child)
            for name, value in attributes.items():
                if isinstance(value, _VALUES) and name[0] != "_":
                    self._attributes.append((attributes, name, value))
            for name, grandchild in child._modules.items():
                self._children.append((child._modules, name, grandchild))
            for table in (child._parameters, child._buffers):
                self._tables.append((table, len(table)))
            for name, tensor in child._buffers.items():
                if tensor is not None and not torch.nn.parameter.is_lazy(tensor):
                    self._buffers.append((child._buffers, name, tensor.dtype, tensor.shape))
            for name, tensor in child._parameters.items():
                if torch.nn.parameter.is_lazy(tensor):
                    raise UnsupportedError(f"parameter '{name}' of a lazy module has no shape yet")
                if tensor is not None:
                    self._tensors.append(
                        (child._parameters, name, tensor, tensor.requires_grad, tensor.dtype, tensor.shape)
                    )

    def unchanged(self):
        for attributes, name, value in self._attributes:
            now = attributes.get(name)
            if now is not value and (now != value or type(now) is not type(value)):
                return False
        for children, name, child in self._children:
            if children.get(name) is not child:
                return False
        for table, size in self._tables:
            if len(table) != size:
                return False
        for table, name, dtype, shape in self._buffers:
            tensor = table.get(name)
            if tensor is None or tensor.dtype is not dtype or tensor.shape != shape:
                return False
        for table, name, tensor, requires_grad, dtype, shape in self._tensors:
            if (
                table.get(name) is not tensor
                or tensor.requires_grad is not requires_grad
                or tensor.dtype is not dtype
                or tensor.shape != shape
            ):
                return False
        return True

    def key(self):
        """Equal keys: a graph captured then is right now."""
        return (
            tuple((id(attributes), name, type(value), value) for attributes, name, value in self._attributes),
            tuple((id(children), name, id(child)) for children, name, child in self._children),
            tuple((id(table), name, dtype, tuple(shape)) for table, name, dtype, shape in self._buffers),
            tuple(
                (id(table), name, id(tensor), requires_grad, dtype, tuple(shape))
                for table, name, tensor, requires_grad, dtype, shape in self._tensors
            ),
        )
