"""A reentrant checkpoint gives gradients to its outputs, and to nothing else that leaves it, as in PyTorch."""

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from lowtide.ortmodule import DebugOptions, ORTModule


class Routed(torch.nn.Module):
    """A block of experts that keeps its router's scores for a loss beside its outputs, as a hook of transformers'
    does: that loss gave the router gradients which it has not in PyTorch."""

    def __init__(self, keeps):
        super().__init__()
        self.first, self.router = torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)
        self.keeps = keeps

    def block(self, x, kept):
        hidden = self.first(x).tanh()
        scores = self.router(hidden)
        if self.keeps:
            kept.append(scores)
        return hidden * scores.softmax(-1).amax(-1, keepdim=True)

    def forward(self, x):
        kept = []
        y = checkpoint(self.block, self.first(x), kept, use_reentrant=True)
        y = checkpoint(self.block, y, [], use_reentrant=True)
        return y.square().sum() + sum(scores.softmax(-1).square().sum() for scores in kept)


@pytest.mark.parametrize("keeps", [True, False])
def test_gradients_are_those_of_its_outputs(keeps):
    torch.manual_seed(0)
    eager = Routed(keeps).double()
    trained = copy.deepcopy(eager)
    ours = ORTModule(trained, DebugOptions())
    x = torch.randn(5, 4, dtype=torch.float64)
    expected, loss = eager(x), ours(x)
    torch.testing.assert_close(loss, expected)
    expected.backward()
    loss.backward()
    for (name, found), wanted in zip(trained.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, msg=lambda text, name=name: f"{name}: {text}")
    assert (ours.fallback_reason is None) == (not keeps)
    if keeps:
        assert "reentrant checkpoint" in ours.fallback_reason
