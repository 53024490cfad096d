"""Sizes that PyTorch's own functions and Dynamo's graphs compute by way of floats, as divisions of whole numbers: the
same number wherever a float holds the quotient's parts. What forward itself computes so, a trace has as them already
(guards/whole_divisions.py): sizes from data must be whole while it is traced."""

from fractions import Fraction

import sympy
from torch.utils._sympy.functions import CeilToInt, FloorDiv, FloorToInt, IntTrueDiv, ToFloat, TruncToInt

_ROUNDED = (CeilToInt, FloorToInt, TruncToInt)
_LARGEST = 2**20  # of a factor's parts, so that no product of a size and one is rounded


def without_floats(expression):
    if not expression.has(*_ROUNDED):
        return expression
    return expression.replace(lambda part: isinstance(part, _ROUNDED), _whole)


def _whole(rounded):
    parts = _quotient(rounded.args[0])
    if parts is None:
        return rounded
    dividend, divisor = parts
    if isinstance(rounded, CeilToInt):
        return FloorDiv(dividend + divisor - 1, divisor)
    if isinstance(rounded, FloorToInt) or dividend.is_nonnegative:
        return FloorDiv(dividend, divisor)
    return rounded


def _quotient(number):
    """(dividend, positive divisor), or None where it is none, or rounded before."""
    if isinstance(number, IntTrueDiv):
        dividend, divisor = number.args
        return (dividend, divisor) if divisor.is_positive else None
    factors = number.args if number.is_Mul else ()
    if len(factors) == 2 and factors[0].is_Float and isinstance(factors[1], ToFloat):
        factor = Fraction(float(factors[0]))
        if abs(factor.numerator) <= _LARGEST and factor.denominator <= _LARGEST:
            return factors[1].args[0] * factor.numerator, sympy.Integer(factor.denominator)
    return None
