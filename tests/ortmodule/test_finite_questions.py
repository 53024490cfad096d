"""Branches on whether numbers are finite: one graph of those that are, and PyTorch for a call with others."""

import copy

import pytest
import torch
from modules import Of, assert_same, step

from lowtide.ortmodule import ORTModule


def clamped(m, x):
    h = m.l(x)
    if not torch.isfinite(h).all():
        h = h.clamp(-1, 1)
    return h * 2


def clamped_of_infinite(m, x):
    h = m.l(x)
    if h.isinf().any() or torch.isnan(h).any():
        h = h.nan_to_num().clamp(-1, 1)
    return h * 2


def clamped_by_a_number(m, x):
    h = m.l(x)
    if (torch.isinf(h) | torch.isnan(h)).any().item():
        h = h.nan_to_num().clamp(-1, 1)
    return h * 2


def clamped_where_inverted(m, x):
    h = m.l(x)
    return (h.nan_to_num().clamp(-1, 1) if (~h.isfinite()).any() else h) * 2


@pytest.mark.parametrize("forward", [clamped, clamped_of_infinite, clamped_by_a_number, clamped_where_inverted])
def test_one_graph_of_finite_numbers(forward):
    module = Of(forward).double()
    wrapped = ORTModule(copy.deepcopy(module))
    rows = torch.randn(4, 4, dtype=torch.float64)
    for _ in range(2):
        assert_same(step(wrapped, (rows,)), step(module, (rows,)))
        assert wrapped.fallback_reason is None
    infinite = rows.clone()
    infinite[0, 0] = torch.inf
    torch.testing.assert_close(wrapped(infinite), module(infinite))
    assert wrapped.fallback_reason is not None
    assert_same(step(wrapped, (rows,)), step(module, (rows,)))
    assert wrapped.fallback_reason is None


def test_another_question_of_all_elements_stays_a_branch():
    def forward(m, x):
        return m.l(x) if (x > 0).all() else m.l(-x) * 2

    module = Of(forward).double()
    wrapped = ORTModule(copy.deepcopy(module))
    for rows in (torch.rand(4, 4, dtype=torch.float64), -torch.rand(4, 4, dtype=torch.float64)):
        torch.testing.assert_close(wrapped(rows), module(rows))
        assert "branches on data" in wrapped.fallback_reason
