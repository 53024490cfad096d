"""Integers inside of ONNX models that are known while reading: shapes, axes and what is computed of them.

ONNX computes shapes with tensors (Shape, Gather, Concat, Reshape); a graph of lowtide's has sizes over symbols.
"""

import math
import operator
from dataclasses import dataclass, field

import numpy

from lowtide._lowtide import canonical_size

_MOST = 1024  # elements; what is larger is data
INTEGERS = ("i64", "i32")


@dataclass
class Contents:
    items: list  # ints, or text over symbols; bools of a comparison
    scalar: bool
    dtype: str = "i64"
    columns: int | None = None  # of a matrix, as PyTorch's exporter turns the pads of Pad round with

    @property
    def constant(self):
        return all(isinstance(item, int) for item in self.items)


@dataclass
class Known:
    """One node as `FOLDED` sees it: contents of its inputs (None: absent or unknown) and attributes."""

    inputs: list
    attrs: dict = field(default_factory=dict)
    shapes: list = field(default_factory=list)  # of inputs, for Shape and Size

    def ints(self, index):
        found = self.inputs[index] if index < len(self.inputs) else None
        return found.items if found is not None and found.constant else None


def of_array(array, dtype):
    if dtype not in INTEGERS or array.ndim > 1 or array.size > _MOST:
        return None
    return Contents([int(item) for item in array.reshape(-1)], array.ndim == 0, dtype)


# ---- arithmetic


def plus(a, b):
    return a + b if isinstance(a, int) and isinstance(b, int) else canonical_size(f"({a}) + ({b})")


def minus(a, b):
    return a - b if isinstance(a, int) and isinstance(b, int) else canonical_size(f"({a}) - ({b})")


def times(a, b):
    return a * b if isinstance(a, int) and isinstance(b, int) else canonical_size(f"({a})*({b})")


def quotient(a, b):
    """Of sizes, which are not negative: there, both ways of rounding are one."""
    if isinstance(a, int) and isinstance(b, int):
        return int(math.trunc(a / b)) if abs(a) < 2**50 else a // b
    return canonical_size(f"({a})//({b})")


def remainder(a, b):
    return a % b if isinstance(a, int) and isinstance(b, int) else canonical_size(f"({a}) % ({b})")


def smaller(a, b):
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else canonical_size(f"min({a}, {b})")


def larger(a, b):
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else canonical_size(f"max({a}, {b})")


def product(sizes):
    total = 1
    for size in sizes:
        total = times(total, size)
    return total


def equal(a, b):
    """Whether two sizes are equal; None if that depends on symbols."""
    if a == b:
        return True
    if isinstance(a, int) and isinstance(b, int):
        return False
    constant = a if isinstance(a, int) else b
    return False if isinstance(constant, int) and constant < 0 else None


# ---- nodes over known integers: each gives Contents, or None where they stay unknown


def _elementwise(function):
    def fold(n):
        if any(found is None for found in n.inputs):
            return None
        result = n.inputs[0]
        for other in n.inputs[1:]:
            count = max(len(result.items), len(other.items))
            if {len(result.items), len(other.items)} - {1, count}:
                return None
            pairs = zip(*(found.items * (count // len(found.items)) for found in (result, other)), strict=True)
            items = [function(a, b) for a, b in pairs]
            if None in items:
                return None
            result = Contents(items, result.scalar and other.scalar, result.dtype)
        return result

    return fold


def _negative(n):
    x = n.inputs[0]
    return x and Contents([minus(0, item) for item in x.items], x.scalar, x.dtype)


def _identity(n):
    return n.inputs[0]


def _shape(n):
    return Contents(n.shapes[0][n.attrs.get("start", 0) : n.attrs.get("end")], False)


def _size(n):
    return Contents([product(n.shapes[0])], True)


def _gather(n):
    data, indices = n.inputs[0], n.ints(1)
    if (
        data is None
        or indices is None
        or data.scalar
        or any(not -len(data.items) <= i < len(data.items) for i in indices)
    ):
        return None
    return Contents([data.items[index] for index in indices], n.inputs[1].scalar, data.dtype)


def _slice(n):
    data, bounds = n.inputs[0], [n.ints(index) for index in (1, 2)]
    steps = n.ints(4) if len(n.inputs) > 4 else [1]
    if data is None or data.scalar or None in bounds or steps is None:
        return None
    window = slice(bounds[0][0], bounds[1][0], steps[0])
    if data.columns is None:
        return Contents(data.items[window], False, data.dtype)
    if len(bounds[0]) != 1 or len(n.inputs) < 4 or n.ints(3) != [0]:
        return None
    rows = [data.items[start : start + data.columns] for start in range(0, len(data.items), data.columns)]
    return Contents([item for row in rows[window] for item in row], False, data.dtype, data.columns)


def _concat(n):
    if any(found is None or found.scalar for found in n.inputs):
        return None
    return Contents([item for found in n.inputs for item in found.items], False, n.inputs[0].dtype)


def _unsqueeze(n):
    x = n.inputs[0]
    return Contents(x.items, False, x.dtype) if x is not None and x.scalar and n.ints(1) == [0] else None


def _squeeze(n):
    x = n.inputs[0]
    return Contents(x.items, True, x.dtype) if x is not None and len(x.items) == 1 else None


def _reshape(n):
    x, target = n.inputs[0], n.ints(1)
    if x is None or target is None or len(target) > 2:
        return None
    if len(target) < 2:
        return Contents(x.items, not target, x.dtype)
    columns = target[1] if target[1] > 0 else len(x.items) // max(1, target[0])
    return Contents(x.items, False, x.dtype, columns) if columns and len(x.items) % columns == 0 else None


def _transpose(n):
    x = n.inputs[0]
    if x is None or x.columns is None or n.attrs.get("perm", [1, 0]) != [1, 0]:
        return None
    rows = len(x.items) // x.columns
    return Contents(
        [x.items[row * x.columns + column] for column in range(x.columns) for row in range(rows)], False, x.dtype, rows
    )


def _constant_of_shape(n):
    shape, fill = n.ints(0), n.attrs.get("fill", 0)
    if shape is None or len(shape) > 1 or not isinstance(fill, int) or (shape and shape[0] > _MOST):
        return None
    return Contents([fill] * (shape[0] if shape else 1), not shape)


def _where(n):
    condition, x, y = n.inputs
    if condition is None or x is None or y is None:
        return None
    count = max(len(found.items) for found in n.inputs)
    if any(len(found.items) not in (1, count) for found in n.inputs):
        return None
    triples = zip(*(found.items * (count // len(found.items)) for found in n.inputs), strict=True)
    return Contents(
        [a if chosen else b for chosen, a, b in triples], x.scalar and y.scalar and condition.scalar, x.dtype
    )


def _reduce_prod(n):
    x = n.inputs[0]
    return x and Contents([product(x.items)], not n.attrs.get("keepdims", 1), x.dtype)


def _range(n):
    bounds = [n.ints(index) for index in range(3)]
    if None in bounds:
        return None
    items = list(range(*(bound[0] for bound in bounds)))
    return Contents(items, False, n.inputs[0].dtype) if len(items) <= _MOST else None


def _logical(function):
    def fold(n):
        result = _elementwise(function)(n)
        return result and Contents([bool(item) for item in result.items], result.scalar, "bool")

    return fold


def _compare(function):
    """Of constants; what holds for sizes depends on the call."""
    return _logical(lambda a, b: function(a, b) if isinstance(a, int) and isinstance(b, int) else None)


def _not(n):
    x = n.inputs[0]
    return x and Contents([not item for item in x.items], x.scalar, "bool") if x and x.constant else None


def _flat(fold):
    """Of vectors and scalars alone."""
    return lambda n: None if any(found is not None and found.columns is not None for found in n.inputs) else fold(n)


_MATRICES = {"Reshape": _reshape, "Slice": _slice, "Transpose": _transpose, "Identity": _identity, "Cast": _identity}
_VECTORS = {
    "Add": _elementwise(plus),
    "Sub": _elementwise(minus),
    "Mul": _elementwise(times),
    "Div": _elementwise(quotient),
    "Mod": _elementwise(remainder),
    "Min": _elementwise(smaller),
    "Max": _elementwise(larger),
    "Neg": _negative,
    "Shape": _shape,
    "Size": _size,
    "Gather": _gather,
    "Concat": _concat,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "ConstantOfShape": _constant_of_shape,
    "Where": _where,
    "ReduceProd": _reduce_prod,
    "Range": _range,
    "Equal": _logical(equal),
    "Less": _compare(operator.lt),
    "LessOrEqual": _compare(operator.le),
    "Greater": _compare(operator.gt),
    "GreaterOrEqual": _compare(operator.ge),
    "And": _compare(operator.and_),
    "Or": _compare(operator.or_),
    "Not": _not,
}
FOLDED = {**{op: _flat(fold) for op, fold in _VECTORS.items()}, **_MATRICES}


def uniform(array):
    """Whether all elements are one number."""
    flat = array.reshape(-1)
    return flat.size > 0 and bool(numpy.all(flat == flat[0]))
