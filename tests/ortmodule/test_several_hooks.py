"""Hooks that forward registers on one tensor: the gradient comes to them in the order in which they were registered."""

import copy

import pytest
import torch
from modules import of, x

from lowtide.compile_backend import lowtide
from lowtide.ortmodule import ORTModule


def twice(m, a):
    h = m.l(a)
    h.register_hook(lambda g: g * 2)
    h.register_hook(lambda g: g + 1)
    return h.tanh()


def three_of_other_tensors(m, a):
    h, scale = m.l(a), a.mean()
    h.register_hook(lambda g: g * scale)
    h.register_hook(lambda g: g.clamp(-0.1, 0.1))
    h.register_hook(lambda g: g - scale)
    return h.tanh() + h


def along_a_chain(m, a):
    h = m.l(a)
    h.register_hook(lambda g: g * 2)
    k = h * 3
    k.register_hook(lambda g: g + 1)
    h.register_hook(lambda g: g - 4)
    k.register_hook(lambda g: g * 5)
    return k.tanh() + h


@pytest.mark.parametrize("door", ["ORTModule", "compile"])
@pytest.mark.parametrize("function", [twice, three_of_other_tensors, along_a_chain])
def test_they_run_in_their_order(function, door, monkeypatch):
    monkeypatch.setenv("LOWTIDE_PIECES", "1")
    torch._dynamo.reset()
    module = of(function)
    mine = copy.deepcopy(module)
    wrapped = ORTModule(mine) if door == "ORTModule" else torch.compile(mine, backend=lowtide)
    for rows in (2, 3):
        given, found = x(rows, 4).double(), []
        for call, owner in ((module, module), (wrapped, mine)):
            owner.zero_grad()
            call(given).square().sum().backward()
            found.append([parameter.grad for parameter in owner.parameters()])
        torch.testing.assert_close(*found)
