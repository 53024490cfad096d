"""One call of a module: arguments flattened into tensors and plain values."""

import enum
import inspect
import re

import torch
import torch.utils._pytree as pytree

from lowtide.errors import UnsupportedData, UnsupportedDevice

# Values that a graph may hold as constants: compared by type and value on each call.
PLAIN = (type(None), bool, int, float, complex, str, bytes, enum.Enum, torch.dtype, torch.device, torch.Size)
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class Call:
    """`leaves` of (args, kwargs) in pytree order; `tensors` are those that are tensors."""

    def __init__(self, args, kwargs):
        self.args, self.kwargs = tuple(args), dict(kwargs)
        self.leaves, self.spec = pytree.tree_flatten((self.args, self.kwargs))
        self.tensors = [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    def schema(self):
        """What must be equal for a captured graph to fit, besides sizes. Hashable but for the tree's own spec."""
        return tuple(
            (type(leaf), leaf.dtype, leaf.dim(), leaf.requires_grad, leaf.device.type, leaf.layout)
            if isinstance(leaf, torch.Tensor)
            else (type(leaf), leaf if isinstance(leaf, PLAIN) else id(leaf))
            for leaf in self.leaves
        )

    def sizes(self):
        return tuple(tuple(tensor.shape) for tensor in self.tensors)

    def with_tensors(self, tensors):
        """(args, kwargs) with other tensors in the places of ours."""
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.spec)

    def check(self):
        """Raises UnsupportedError for an argument that no captured graph could take."""
        for leaf in self.leaves:
            if isinstance(leaf, torch.Tensor):
                if leaf.device.type != "cpu":
                    raise UnsupportedDevice(f"expected tensors on the CPU, found one on {leaf.device}")
                if leaf.layout is not torch.strided:
                    raise UnsupportedData(f"expected dense tensors, found one of layout {leaf.layout}")
                if type(leaf) not in PLAIN_TENSORS:
                    raise UnsupportedData(f"an argument is a tensor subclass, {type(leaf).__name__}")
            elif not isinstance(leaf, PLAIN):
                raise UnsupportedData(
                    f"an argument holds a {type(leaf).__module__}.{type(leaf).__qualname__}, which is neither a tensor "
                    "nor a plain value (register its type with torch.utils._pytree)"
                )

    def names(self, forward):
        """A name for each tensor: the parameter of `forward` that brings it, then keys and positions."""
        parameters = list(inspect.signature(forward).parameters.values())
        taken, names = set(), []
        for path, leaf in pytree.tree_flatten_with_path((self.args, self.kwargs))[0]:
            if not isinstance(leaf, torch.Tensor):
                continue
            keyword = path[0].idx == 1
            keys = [str(getattr(key, "idx", getattr(key, "key", getattr(key, "name", key)))) for key in path[1:]]
            if not keyword:
                keys = _positional_name(parameters, int(keys[0])) + keys[1:]
            name = re.sub(r"\W", "_", "_".join(keys)) or "input"
            if name[0].isdigit():
                name = f"input_{name}"
            while name in taken:
                name += "_"
            taken.add(name)
            names.append(name)
        return names


def _positional_name(parameters, index):
    for position, parameter in enumerate(parameters):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            return [parameter.name, str(index - position)]
        if position == index:
            return [parameter.name]
    return ["args", str(index)]
