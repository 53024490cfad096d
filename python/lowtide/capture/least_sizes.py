"""What is as large as the smaller of itself and another size: `x[:, :k]` beside k columns. So it is no larger."""

import sympy
from torch.utils._sympy.functions import Min

_SMALLER = (Min, sympy.Min)


def smaller_that_is(condition):
    """(minimum, the operand that it is equal to) of an equation that says so: `k == Min(8, k)`; else None."""
    if not isinstance(condition, sympy.Eq):
        return None
    difference = sympy.expand(condition.lhs - condition.rhs)
    for least in difference.atoms(*_SMALLER):
        factor = difference.coeff(least, 1)
        if factor in (1, -1):
            rest = sympy.expand(least - factor * difference)
            if rest in least.args:
                return least, rest
    return None


def as_bounds(condition):
    """The same as inequalities."""
    if (found := smaller_that_is(condition)) is None:
        return condition
    least, equal = found
    return sympy.And(*(sympy.Le(equal, other) for other in least.args if other != equal))
