"""Buffers that forward replaces, and reads before or after that: eager's gradients, outputs and buffers."""

import copy

import pytest
import torch
from modules import Of, assert_same_state, x

from lowtide import compile_backend
from lowtide.ortmodule import ORTModule


def read_before(m, a):
    y = (torch.tanh(m.l(a)) * m.b).sum()
    m.b = a.detach().mean(0)
    return y


def through_a_view(m, a):
    y = (torch.tanh(m.l(a)) * m.b.view(2, 2).t().reshape(-1)).sum()
    m.b = m.b * 0.5 + m.c
    return y


def swapped(m, a):
    m.b, m.c = m.c, m.b
    return (torch.tanh(m.l(a)) * m.b + m.c).sum()


def swapped_behind(m, a):
    y = (torch.tanh(m.l(a)) * m.b + m.c).sum()
    m.b, m.c = m.c, m.b
    return y


def returned(m, a):
    before = m.b
    m.b = m.b * 0.5 + a.detach().mean(0)
    m.seen = before.t()
    return (torch.tanh(m.l(a)) * before).sum()


@pytest.mark.parametrize("door", ["wrapper", "compile"])
@pytest.mark.parametrize("function", [read_before, through_a_view, swapped, swapped_behind, returned])
def test_as_eager(function, door):
    torch.compiler.reset()
    eager = Of(function).double()
    eager.register_buffer("b", torch.full((4,), 2.0, dtype=torch.float64))
    eager.register_buffer("c", torch.full((4,), 3.0, dtype=torch.float64))
    eager.seen = None
    target = copy.deepcopy(eager)
    compiled = ORTModule(target) if door == "wrapper" else torch.compile(target, backend=compile_backend.lowtide)
    for step in range(3):
        for module, call in ((eager, eager), (target, compiled)):
            module.zero_grad()
            call(x().double() + step).backward()
        assert_same_state(target, eager)
        torch.testing.assert_close(target.seen, eager.seen)
    eager.eval()
    target.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x().double()), eager(x().double()))
    for ours, theirs in zip(target.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert door == "compile" or compiled.fallback_reason is None


def argument(m, a):
    m.b = a
    return m.l(a).sum()


def computed(m, a):
    m.b, m.c = m.l(a).detach(), m.b
    return (m.b * 2).sum() + m.l(a).sum()


@pytest.mark.parametrize("door", ["wrapper", "compile"])
@pytest.mark.parametrize("function", [argument, computed])
def test_the_buffer_that_was_there_stays_what_it_was(function, door):
    """It was written into, whoever held it."""
    torch.compiler.reset()
    module = Of(function)
    module.register_buffer("b", torch.zeros(3, 4))
    module.register_buffer("c", torch.zeros(3, 4))
    call = ORTModule(module) if door == "wrapper" else torch.compile(module, backend=compile_backend.lowtide)
    for step in range(3):
        before, values, given = module.b, module.b.clone(), x() + step
        call(given).backward()
        torch.testing.assert_close(before, values)
        assert module.b is given if function is argument else module.c is before
    assert door == "compile" or call.fallback_reason is None


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_a_buffer_of_another_size_in_each_call_asks_for_no_export_in_each(with_pieces):
    def forward(m, a):
        m.last = a.detach() * 2
        return m.l(a).sum()

    module = Of(forward)
    module.register_buffer("last", torch.zeros(3, 4))
    wrapped = ORTModule(module)
    for rows in (3, 5, 3, 5, 7, 8, 3):
        wrapped(x(rows, 4)).backward()
        torch.testing.assert_close(module.last, x(rows, 4) * 2)
    counts = wrapped.transition_counts()["in training mode"]
    assert counts["refused"] <= 2 and "1 of 1 pieces in the engine" in wrapped.fallback_reason
