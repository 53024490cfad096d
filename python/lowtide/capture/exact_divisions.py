"""Differences of sizes without common factors and exact divisions: 0 where they are 0, but simpler."""

import sympy
from torch.utils._sympy.functions import FloorDiv, Mod


def without_common_factors(difference):
    """`24 - length` of a polynomial `24*batch - batch*length`: 0 where that is, for a batch that is not empty."""
    difference = sympy.expand(difference)
    if not difference.is_polynomial():
        return difference
    factors = sympy.Mul.make_args(sympy.terms_gcd(difference))
    return next((factor for factor in factors if factor.is_Add), difference)


def without_exact_divisions(difference, zeros):
    """A polynomial that is 0 where `difference` is: of `(a*b*c)//(b*b) - a`, whose division is exact since one of
    `zeros` is 0 (a remainder, or dividend - divisor * division), `c - b`. Where b is 0 that asks for more than must
    hold. None where there is none."""
    zeros = {_without_common_factors(zero) for zero in zeros}
    difference = sympy.expand(difference)
    while powers := _divisions_in(difference):
        division, highest = powers.popitem()
        if not _is_exact(division, zeros) or not (highest.is_Integer and highest > 0):
            return None
        dividend, divisor = division.args
        # Term by term: the same division inside of another one stays.
        factors = {power: difference.coeff(division, power) for power in range(1, int(highest) + 1)}
        rest = difference - sum(factor * division**power for power, factor in factors.items())
        multiplied = sum(factor * dividend**power * divisor ** (highest - power) for power, factor in factors.items())
        difference = sympy.expand(divisor**highest * rest + multiplied)
    return without_common_factors(difference) if difference.is_polynomial() else None


def _is_exact(division, zeros):
    dividend, divisor = division.args
    remainder = _without_common_factors(dividend - divisor * division)
    if not zeros.isdisjoint((remainder, sympy.expand(-remainder))):
        return True
    remainders = [zero.args for zero in zeros if isinstance(zero, Mod)]
    return any(sympy.expand(each * divisor - by * dividend) == 0 for each, by in remainders)


def _without_common_factors(difference):
    """The same of a polynomial in symbols and divisions."""
    difference = sympy.expand(difference)
    stand_ins = {division: sympy.Dummy() for division in difference.atoms(FloorDiv)}
    divisions = {stand_in: division for division, stand_in in stand_ins.items()}
    return without_common_factors(difference.xreplace(stand_ins)).xreplace(divisions)


def _divisions_in(polynomial):
    """{division that is a factor of a term: its highest power}. One inside of another is none of the polynomial's."""
    powers = {}
    for term in sympy.Add.make_args(polynomial):
        for base, power in (factor.as_base_exp() for factor in sympy.Mul.make_args(term)):
            if isinstance(base, FloorDiv):
                powers[base] = max(powers.get(base, power), power)
    return powers
