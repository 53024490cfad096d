"""What a captured graph assumes about its module's Python side: compared on each call."""

import torch
from torch.nn.parameter import is_lazy

_MISSING = object()
_HOOK_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class ModuleWatch:
    """The module tree, the plain attributes that forward read (eps, p, training …), and what parameters and buffers
    are; not their values. An attribute that forward never read may change at will."""

    def __init__(self, module, reads):
        """`reads`: pairs (id of a module, name of an attribute), see capture.attribute_reads."""
        self._attributes = []  # (vars of a module, name, value)
        self._children = []  # (children of a module, name, child)
        self._hooks = []  # (hooks of a module, their ids)
        self._tables = []  # (children, parameters or buffers of a module, how many)
        self._tensors = []  # (parameters of a module, name, tensor, requires_grad, dtype, shape)
        self._buffers = []  # (buffers of a module, name, dtype, shape): any tensor of that type is as good
        names = {}
        for owner, name in reads:
            names.setdefault(owner, []).append(name)
        for child in module.modules():
            attributes = vars(child)
            for name in names.get(id(child), ()):
                self._attributes.append((attributes, name, attributes.get(name, _MISSING)))
            for name, grandchild in child._modules.items():
                self._children.append((child._modules, name, grandchild))
            for table in (child._modules, child._parameters, child._buffers):
                self._tables.append((table, len(table)))
            for table in (getattr(child, name) for name in _HOOK_TABLES):
                self._hooks.append((table, tuple(table)))
            for name, tensor in child._parameters.items():
                if tensor is not None:
                    kind = (tensor.requires_grad, tensor.dtype, _shape(tensor), _strides(tensor))
                    self._tensors.append((child._parameters, name, tensor, *kind))
            for name, tensor in child._buffers.items():
                if tensor is not None:
                    self._buffers.append((child._buffers, name, tensor.dtype, _shape(tensor)))

    def unchanged(self):
        for attributes, name, value in self._attributes:
            now = attributes.get(name, _MISSING)
            if now is not value and (type(now) is not type(value) or now != value):
                return False
        for children, name, child in self._children:
            if children.get(name) is not child:
                return False
        for table, size in self._tables:
            if len(table) != size:
                return False
        for table, hooks in self._hooks:
            if tuple(table) != hooks:
                return False
        for table, name, tensor, requires_grad, dtype, shape, strides in self._tensors:
            if (
                table.get(name) is not tensor
                or tensor.requires_grad is not requires_grad
                or tensor.dtype is not dtype
                or _shape(tensor) != shape
                or _strides(tensor) != strides
            ):
                return False
        for table, name, dtype, shape in self._buffers:
            tensor = table.get(name)
            if tensor is None or tensor.dtype is not dtype or _shape(tensor) != shape:
                return False
        return True


def _strides(tensor):
    return None if is_lazy(tensor) or tensor.layout is not torch.strided else tensor.stride()


def _shape(tensor):
    return None if is_lazy(tensor) else tensor.shape
