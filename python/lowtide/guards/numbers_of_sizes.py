"""Numbers that forward computes of sizes in tensors of one number, as Encodec its padding: what it asks of one is a
question about sizes, and what it makes a size of is a size, in a graph of all lengths.

    frames = torch.ceil((length - 3) / self.stride + 1)      in f32: exact, where no size is too large
    extra = (frames.to(torch.int64) - 1) * self.stride - length
    pad(x, (0, extra))                                       a size of the padded, computed of `length`
"""

import operator
from dataclasses import dataclass

import torch

_MOST_ROUNDINGS = 8
# Numerators that this many roundings, each half a unit in the last place, leave nearer than half a step of the fraction
# to where they were: of 24 and 53 bits.
_EXACT = {torch.float32: 2**20, torch.float64: 2**49}
_WHOLE = {torch.int64: 2**63, torch.int32: 2**31}
_MOST_DIVISOR = 2**16


class Inexact(Exception):
    """It is no such number, or nobody knows that it is one."""


@dataclass(frozen=True)
class _Number:
    """`numerator / divisor`, which a tensor of `dtype` holds, perhaps rounded. Of no dtype: one of Python's."""

    numerator: object  # int, SymInt; of torch.bool, bool or SymBool
    divisor: int = 1
    dtype: torch.dtype | None = None
    roundings: int = 0


def checked(number):
    """`number`, where its dtype holds it: a question about the sizes that it is computed of."""
    limit = _WHOLE.get(number.dtype) or _EXACT.get(number.dtype)
    if limit is None or number.roundings > _MOST_ROUNDINGS or number.divisor > _MOST_DIVISOR:
        raise Inexact
    if number.dtype is not torch.int64 and not (number.numerator < limit and number.numerator > -limit):
        raise Inexact
    return number


def number_of(value):
    """Of one of Python's, or a size."""
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int and not isinstance(value, torch.SymInt):
        raise Inexact
    return _Number(value)


def result_of(name, args, kwargs, dtype):
    """What the function of PyTorch's of this name makes of Numbers, a tensor of `dtype`. Inexact where that is not
    known."""
    name = name.strip("_")
    if name in _COMPARED and len(args) == 2 and not kwargs:
        return _compared(_COMPARED[name], *args)
    if name in _MOVES and args and isinstance(args[0], _Number):
        return checked(_cast(args[0], dtype))
    if name in _DIVIDES and kwargs == {"rounding_mode": "floor"}:
        name, kwargs = "floor_divide", {}
    takes, function = _FUNCTIONS.get(name, (None, None))
    if kwargs or len(args) != takes or not all(isinstance(arg, _Number) for arg in args):
        raise Inexact
    numerator, divisor = function(*args)
    roundings = sum(number.roundings for number in args) + 1 if divisor > 1 else 0  # a whole number is exact
    return checked(_Number(numerator, divisor, dtype, roundings))


def size_of(number):
    """The int or SymInt that a tensor of whole numbers holds."""
    if number.dtype not in _WHOLE:
        raise Inexact
    return number.numerator


def truth_of(number):
    """What bool() makes of the tensor: a question."""
    return bool(number.numerator if number.dtype is torch.bool else number.numerator != 0)


def _cast(number, dtype):
    if number.divisor > 1 and not dtype.is_floating_point:
        if not number.numerator >= 0:
            raise Inexact
        return _Number(number.numerator // number.divisor, 1, dtype)
    return _Number(number.numerator, number.divisor, dtype, number.roundings + (number.divisor > 1))


def _compared(compare, first, second):
    """A fraction and a whole number: roundings do not bring one to the other's place."""
    if not isinstance(first, _Number) or not isinstance(second, _Number) or 1 not in (first.divisor, second.divisor):
        raise Inexact
    answer = compare(first.numerator * second.divisor, second.numerator * first.divisor)
    return _Number(answer, dtype=torch.bool)


def _sum(first, second, sign=1):
    if 1 not in (first.divisor, second.divisor):
        raise Inexact
    numerator = first.numerator * second.divisor + sign * second.numerator * first.divisor
    return numerator, first.divisor * second.divisor


def _difference(first, second):
    return _sum(first, second, -1)


def _of_whole(function):
    def of(first, second):
        if first.divisor != 1 or second.divisor != 1:
            raise Inexact
        return function(first.numerator, second.numerator), 1

    return of


def _by_divisor(function):
    """Of whole numbers by one that is a constant."""

    def of(first, second):
        divisor = second.numerator
        if second.divisor != 1 or type(divisor) is not int or divisor < 1:
            raise Inexact
        return function(first, divisor)

    return of


def _floored(function):
    def of(first, divisor):
        if first.divisor != 1:
            raise Inexact
        return function(first.numerator, divisor), 1

    return of


def _floor(number):
    return number.numerator // number.divisor, 1


def _ceil(number):
    return (number.numerator + (number.divisor - 1)) // number.divisor, 1


def _negative(number):
    return -number.numerator, number.divisor


def _swapped(function):
    return lambda first, second: function(second, first)


_quotient = _by_divisor(lambda first, divisor: (first.numerator, first.divisor * divisor))
_floor_quotient, _rest = _by_divisor(_floored(operator.floordiv)), _by_divisor(_floored(operator.mod))
_product = _of_whole(operator.mul)


def _product_with_reciprocal(divisor, number):
    """`number / divisor`, as Tensor.__rtruediv__ computes it: 49 * (1 / 49) is not 1 in f64."""
    if type(divisor.numerator) is not int or divisor.numerator & (divisor.numerator - 1):
        raise Inexact
    return _quotient(number, divisor)


_DIVIDES = ("div", "divide", "truediv", "true_divide")
_MOVES = frozenset(
    ("to", "type", "long", "int", "float", "double", "clone", "detach", "contiguous")
    + ("tensor", "as_tensor", "scalar_tensor")
)
_FUNCTIONS = {  # name → (how many arguments, what is made of them)
    **dict.fromkeys(("add", "radd"), (2, _sum)),
    **dict.fromkeys(("sub", "subtract"), (2, _difference)),
    "rsub": (2, _swapped(_difference)),
    **dict.fromkeys(("mul", "rmul", "multiply"), (2, _product)),
    **dict.fromkeys(_DIVIDES, (2, _quotient)),
    "rdiv": (2, _product_with_reciprocal),
    **dict.fromkeys(("floordiv", "floor_divide"), (2, _floor_quotient)),
    "rfloordiv": (2, _swapped(_floor_quotient)),
    **dict.fromkeys(("mod", "remainder"), (2, _rest)),
    "rmod": (2, _swapped(_rest)),
    **dict.fromkeys(("neg", "negative"), (1, _negative)),
    "floor": (1, _floor),
    "ceil": (1, _ceil),
    **dict.fromkeys(("minimum", "min"), (2, _of_whole(torch.sym_min))),
    **dict.fromkeys(("maximum", "max"), (2, _of_whole(torch.sym_max))),
}
_COMPARED = {
    **dict.fromkeys(("lt", "less"), operator.lt),
    **dict.fromkeys(("le", "less_equal"), operator.le),
    **dict.fromkeys(("gt", "greater"), operator.gt),
    **dict.fromkeys(("ge", "greater_equal"), operator.ge),
    "eq": operator.eq,
    **dict.fromkeys(("ne", "not_equal"), operator.ne),
}
