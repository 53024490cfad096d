"""Differences of sizes with divisions that the guards say to be exact."""

import pytest
import sympy
from torch.utils._sympy.functions import FloorDiv, Max, Mod

from lowtide.capture.exact_divisions import without_exact_divisions

a, b, c = sympy.symbols("a b c", integer=True, positive=True)
EIGHTHS = FloorDiv(a, 8)


@pytest.mark.parametrize(
    ("difference", "zeros", "expected"),
    [
        (EIGHTHS - b, [Mod(a, 8)], a - 8 * b),
        (EIGHTHS - b, [a - 8 * EIGHTHS], a - 8 * b),
        (EIGHTHS - b, [3 * a - 24 * EIGHTHS], a - 8 * b),
        (EIGHTHS * c - b * c, [Mod(2 * a, 16, evaluate=False)], a - 8 * b),
        (EIGHTHS - b, [Mod(a, 4)], None),
        (EIGHTHS - b, [], None),
        (FloorDiv(c, EIGHTHS) - b, [Mod(a, 8), Mod(c, EIGHTHS)], a * b - 8 * c),
        (FloorDiv(c, EIGHTHS) - b, [Mod(a, 8)], None),
        (Max(1, FloorDiv(a, EIGHTHS)) - b, [Mod(a, 8)], None),
        (EIGHTHS**2 * c + EIGHTHS - b, [Mod(a, 8)], a**2 * c + 8 * a - 64 * b),
    ],
)
def test_what_is_0_with_the_difference(difference, zeros, expected):
    found = without_exact_divisions(difference, zeros)
    assert found == expected or None not in (found, expected) and sympy.expand(found + expected) == 0
