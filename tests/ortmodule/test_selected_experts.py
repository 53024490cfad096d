"""Mixtures of experts that ask which experts were chosen: one graph of the calls in which each has rows. In others the
parameters of those without rows have no gradient, as in PyTorch, and after a few of them the module runs in pieces."""

import copy

import pytest
import torch
import torch.nn.functional as F
from modules import assert_same, step

from lowtide.ortmodule import ORTModule


def any_of_a_mask(m, x, weights, chosen, result):
    for expert in range(3):
        mask = (chosen == expert).any(-1)
        if mask.any():
            result[mask] += m.experts[expert](x[mask]) * weights[chosen == expert][:, None]
    return result


def sum_of_a_mask(m, x, weights, chosen, result):
    for number, expert in enumerate(m.experts):
        mask = chosen == number
        if mask.sum() == 0:
            continue
        row, choice = torch.where(mask)
        result[row] = result[row] + expert(x[row]) * weights[row, choice, None]
    return result


def loop_over_those_hit(m, x, weights, chosen, result):
    mask = F.one_hot(chosen, 3).permute(2, 1, 0)
    for expert in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
        choice, row = torch.where(mask[expert].squeeze(0))
        result.index_add_(0, row, m.experts[expert[0]](x[row]) * weights[row, choice, None])
    return result


def loop_over_those_with_room(m, x, weights, chosen, result):
    """As SwitchTransformers' router and experts: by names in a ModuleDict."""
    mask = F.one_hot(chosen, 3)
    mask = mask * (mask.cumsum(dim=0) <= 25)
    experts = torch.nn.ModuleDict({f"expert_{number}": expert for number, expert in enumerate(m.experts)})
    mask = mask.permute(2, 1, 0)
    for expert in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
        choice, row = torch.where(mask[expert].squeeze(0))
        result.index_add_(0, row, experts[f"expert_{expert[0]}"](x[row]) * weights[row, choice, None])
    return result


def loop_over_unique_ones(m, x, weights, chosen, result):
    for expert in chosen.unique().tolist():
        row, choice = torch.where(chosen == expert)
        result.index_add_(0, row, m.experts[expert](x[row]) * weights[row, choice, None])
    return result


class Mixture(torch.nn.Module):
    def __init__(self, way):
        super().__init__()
        self.way, self.router = way, torch.nn.Linear(4, 3)
        self.experts = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x, bias):
        weights, chosen = (self.router(x) + bias).softmax(-1).topk(2)
        return self.way(self, x, weights, chosen, torch.zeros_like(x))


def call(rows, *bias):
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows), dtype=torch.float64)
    return x.requires_grad_(), torch.tensor(bias, dtype=torch.float64)


ALL, TWO, ONE_ALWAYS = (0.0, 0.0, 0.0), (90.0, 60.0, 0.0), (90.0, 0.0, 0.0)


@pytest.mark.usefixtures("with_pieces")
@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
@pytest.mark.parametrize(
    "way",
    [any_of_a_mask, sum_of_a_mask, loop_over_those_hit, loop_over_those_with_room, loop_over_unique_ones],
    ids=lambda way: way.__name__,
)
def test_graphs_of_calls_that_choose_every_expert(way):
    torch.manual_seed(0)
    module = Mixture(way).double()
    wrapped = ORTModule(copy.deepcopy(module))
    for rows, bias in ((30, ALL), (41, ONE_ALWAYS), (30, TWO), (20, ALL)):
        arguments = call(rows, *bias)
        expected = step(module, arguments)
        assert (expected[1]["experts.2.weight"] is None) == (bias == TWO)
        assert_same(step(wrapped, arguments), expected, rtol=1e-8, atol=1e-11)
        assert (wrapped.fallback_reason is None) == (bias != TWO), wrapped.fallback_reason
    for _ in range(4):  # usual from now on
        assert_same(step(wrapped, call(5, *TWO)), step(module, call(5, *TWO)), rtol=1e-8, atol=1e-11)
    assert "pieces in the engine" in wrapped.fallback_reason
