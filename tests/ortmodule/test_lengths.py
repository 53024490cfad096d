"""len(tensor) in forward is a size like any other: contrastive losses number their rows by it."""

import copy

import pytest
import torch

from lowtide.ortmodule import ORTModule


class Contrast(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = torch.nn.Linear(8, 4), torch.nn.Linear(6, 4)

    def forward(self, x, y):
        scores = self.left(x) @ self.right(y).T
        return torch.nn.functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))


class Loop(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 4)

    def forward(self, x, y):
        h = self.fc(x)
        return sum((row + 1) * h[row].square().sum() for row in range(len(h))) / len(y)


@pytest.mark.parametrize(("cls", "exports"), [(Contrast, 1), (Loop, 3)])
def test_lengths_are_sizes(cls, exports):
    torch.manual_seed(0)
    eager = cls().double()
    wrapped = ORTModule(copy.deepcopy(eager))
    for rows in (4, 3, 7, 4):
        inputs = [torch.randn(rows, width, dtype=torch.float64) for width in (8, 6)]
        losses = [module(*inputs) for module in (wrapped, eager)]
        torch.testing.assert_close(*losses, rtol=1e-12, atol=0)
        for loss in losses:
            loss.backward()
    assert wrapped.fallback_reason is None
    for ours, theirs in zip(wrapped.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-14)
    counts = wrapped.transition_counts()
    assert sum(count for of_mode in counts.values() for count in of_mode.values()) == exports
