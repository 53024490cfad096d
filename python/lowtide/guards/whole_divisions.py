"""`math.ceil(n / 8)`, `int(0.5 * n)` of a size or a count: whole divisions, which sizes of a graph may be.
PyTorch rounds a real number there, of which a graph makes no size."""

import fractions

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

_LARGEST = 2**12  # of a numerator or denominator: a division of numbers up to 2**40 is rounded to no other whole number


class WholeDivisions:
    """Of one trace."""

    def __init__(self):
        self._parts = {}  # id → (real number, whole one, Fraction that it is multiplied by)

    def clear(self):
        self._parts = {}

    def note(self, name, number, others, result):
        """`result` is what an operator has given."""
        if name not in ("truediv", "mul") or not isinstance(result, torch.SymFloat) or len(others) != 1:
            return
        (other,) = others
        if type(other) not in (int, float) or other <= 0 or other != other or other == float("inf"):
            return
        factor = fractions.Fraction(other)
        whole, before = number, fractions.Fraction(1)
        if isinstance(number, torch.SymFloat):
            if id(number) not in self._parts:
                return
            _, whole, before = self._parts[id(number)]
            if before.denominator & (before.denominator - 1):
                return  # it is rounded already: (1 / 49) * 49 is less than 1
        factor = before * factor if name == "mul" else before / factor
        if max(factor.denominator, factor.numerator) <= _LARGEST:
            self._parts[id(result)] = result, whole, factor

    def patches(self):
        """(class, name, method that divides whole numbers)."""
        yield torch.SymFloat, "__floor__", self._rounded(torch.SymFloat.__floor__, lambda a, b: a // b)
        yield torch.SymFloat, "__trunc__", self._rounded(torch.SymFloat.__trunc__, lambda a, b: a // b, True)
        yield torch.SymFloat, "__ceil__", self._rounded(torch.SymFloat.__ceil__, lambda a, b: (a + b - 1) // b)

    def _rounded(self, method, divided, from_zero=False):
        """`from_zero`: it holds for numbers from 0 on alone."""

        def rounded(number):
            if id(number) not in self._parts:
                return method(number)
            _, whole, factor = self._parts[id(number)]
            if from_zero and not _is_from_zero(whole):
                return method(number)
            return divided(whole * factor.numerator if factor.numerator != 1 else whole, factor.denominator)

        return rounded


def _is_from_zero(whole):
    """Of a number that a tensor has, which is a count most likely, each step checks it."""
    if not statically_known_true(whole >= 0) and whole.node.expr.is_Symbol:
        torch._check(whole >= 0)
    return statically_known_true(whole >= 0)
