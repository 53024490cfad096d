"""torch._foreach_…: one graph of what it does to each tensor. (Modules with one ran in PyTorch whole.)"""

import copy

import pytest
import torch
from modules import Of, assert_same, step

from lowtide.ortmodule import ORTModule

F = {name: getattr(torch, f"_foreach_{name}") for name in ("add", "mul", "addcmul", "maximum", "lerp", "norm", "pow")}


def pair(m, a):
    y = m.l(a)
    return [y * 1, y.square()]


def in_place(m, a):
    one, other = made = pair(m, a)
    torch._foreach_mul_(made, 2.0)
    torch._foreach_add_(made, [a, other.detach()], alpha=0.5)
    torch._foreach_addcdiv_(made, [a, a], [a.exp(), a.exp()], 0.25)
    assert torch._foreach_sigmoid_(made) is made and made[0] is one
    return made


def averages(m, a):
    """As those of weights, in buffers."""
    with torch.no_grad():
        torch._foreach_lerp_([m.l.weight.detach() * 1, m.mean], [m.l.weight.detach(), m.l.bias], 0.1)
        torch._foreach_copy_([m.last], [m.mean])
        torch._foreach_maximum_([m.last], 0.5)
        torch._foreach_zero_([m.zeroed])
    return m.l(a) + m.mean * m.last + m.zeroed


MODULES = {
    "in place": in_place,
    "buffers": averages,
    "functions": lambda m, a: F["add"](F["mul"](pair(m, a), [2.0, 3.0]), F["pow"](pair(m, a), 2)),
    "of three": lambda m, a: F["addcmul"](pair(m, a), [a, a], [a, a + 1], [0.5, 2.0]),
    "weights": lambda m, a: F["lerp"](pair(m, a), [a, a], 0.25) + F["maximum"](pair(m, a), [a, a]),
    "norms": lambda m, a: F["norm"](pair(m, a), 1) + F["norm"](pair(m, a)),
    "a number of one dim": lambda m, a: F["mul"](pair(m, a), a.mean()),
    "powers of a number": lambda m, a: F["pow"](2.0, pair(m, a)),
}


@pytest.mark.parametrize("name", MODULES)
def test_one_graph_of_what_is_done_to_each(name):
    module = Of(MODULES[name]).double()
    for buffer in ("mean", "last", "zeroed"):
        module.register_buffer(buffer, torch.ones(4, dtype=torch.float64))
    wrapped = ORTModule(copy.deepcopy(module))
    for rows in (3, 3, 5):
        a = torch.rand(rows, 4).double()
        assert_same(step(wrapped, (a,)), step(module, (a,)))
        assert wrapped.fallback_reason is None
