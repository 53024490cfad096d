"""Arguments of ATen calls that are no tensors, as attributes of a graph's nodes."""

import torch

from lowtide.errors import UnsupportedError
from lowtide.guards.values import dtype_name

from .sizes import NeedsConstants


class Attributes:
    def __init__(self, sizes, value_of):
        """`sizes`: Sizes of the program; `value_of`: what an argument stands for."""
        self._sizes, self._value_of = sizes, value_of

    def of(self, argument, kind, value):
        """(type, value) for the graph, or None for what it leaves out. `kind`: of the argument, as its schema says."""
        if "Generator" in kind:
            raise UnsupportedError("forward draws from a generator of its own")
        if "MemoryFormat" in kind:
            return ("string", "channels_last") if value is torch.channels_last else None
        if "Device" in kind and torch.device(value).type not in ("cpu", "meta"):
            raise UnsupportedError(f"forward makes a tensor on {value}")
        if "Device" in kind or "Layout" in kind or argument == "pin_memory":
            return None
        if isinstance(value, list | tuple):
            return self._list(kind, [self._value_of(item) for item in value])
        return self._single(kind, self._value_of(value))

    def _list(self, kind, items):
        if "float" in kind:
            return "floats", [self._number(item) for item in items]
        if "str" in kind:
            return "strings", items
        if any(isinstance(item, float) for item in items):
            return "floats", [self._number(item) for item in items]
        return "ints", [int(item) if isinstance(item, bool) else self._sizes.dim(item) for item in items]

    def _single(self, kind, value):
        if "List[int]" in kind or "List[SymInt]" in kind:
            return "ints", [self._sizes.dim(value)]
        if isinstance(value, bool):
            return ("bool", value) if "bool" in kind or "number" in kind or "Tensor" in kind else ("int", int(value))
        if isinstance(value, torch.SymBool):
            if (holds := value.node.hint) is None:
                raise UnsupportedError("a condition depends on data")
            self._sizes.add_guard(value if holds else torch.sym_not(value))
            return "bool", bool(holds)
        if isinstance(value, float | torch.SymFloat) or "float" in kind:
            return "float", self._number(value)
        if isinstance(value, int | torch.SymInt):
            return "int", self._sizes.dim(value)
        if isinstance(value, complex):
            return "floats", [value.real, value.imag]
        if isinstance(value, str):
            return "string", value
        if isinstance(value, torch.dtype):
            return "dtype", dtype_name(value)
        raise UnsupportedError(f"an argument is a {type(value).__name__}")

    def _number(self, value):
        if isinstance(value, torch.SymFloat | torch.SymInt):
            expression = self._sizes.resolve(value)
            if not hasattr(expression, "free_symbols"):
                return float(expression)
            self._sizes.text(expression)
            if expression.free_symbols:
                raise NeedsConstants(self._sizes.dims_of(expression))
        return float(value)
