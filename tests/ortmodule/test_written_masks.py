"""Masks and indices are made of values with gradients and have none: no write into them is one that autograd misses."""

import copy

import pytest
import torch

from lowtide.ortmodule import ORTModule


class MaskedAttention(torch.nn.Module):
    """As mask transformers: whom a query may see is a matter of its own prediction, and all where that is nobody."""

    def __init__(self):
        super().__init__()
        self.predict, self.project = torch.nn.Linear(8, 6), torch.nn.Linear(8, 8)

    def forward(self, x):
        scores = self.predict(x)
        hidden = (scores.sigmoid() < 0.5).detach()
        hidden[torch.where(hidden.sum(-1) == hidden.shape[-1])] = False
        return scores.masked_fill(hidden, -9.0).softmax(-1).sum() + self.project(x).square().mean()


class CountedRows(torch.nn.Module):
    """Under no_grad, into an index of the largest that autograd has no part in."""

    def __init__(self):
        super().__init__()
        self.scores = torch.nn.Linear(8, 5)

    def forward(self, x):
        scores = self.scores(x)
        best = scores.argmax(-1)
        with torch.no_grad():
            best.add_(1).remainder_(5)
        return torch.nn.functional.cross_entropy(scores, best)


@pytest.mark.parametrize("make", [MaskedAttention, CountedRows])
def test_they_are_in_the_graph(make):
    torch.manual_seed(0)
    eager = make().double()
    wrapped = ORTModule(copy.deepcopy(eager))
    for rows in (4, 7, 4):
        x = torch.randn(rows, 8, dtype=torch.float64)
        for module in (eager, wrapped):
            module.zero_grad()
            loss = module(x)
            loss.backward()
        assert wrapped.fallback_reason is None
        assert loss.item() == pytest.approx(eager(x).item(), rel=1e-10)
        for ours, theirs in zip(wrapped.parameters(), eager.parameters(), strict=True):
            assert torch.allclose(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)
