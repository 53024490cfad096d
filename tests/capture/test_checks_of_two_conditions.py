"""A check of two conditions at once, on a size from data: each step checks both."""

import pytest
import torch

from lowtide.ortmodule import DebugOptions, ORTModule


class Chosen(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(4, 4)

    def forward(self, x, mask):
        rows = self.project(x)[mask]
        torch._check((rows.shape[0] > 1) & (rows.shape[0] + 1 < 5))
        return rows.square().sum()


def test_both_are_checked():
    torch.manual_seed(0)
    eager = Chosen().double()
    ours = ORTModule(eager, DebugOptions())
    x = torch.randn(6, 4, dtype=torch.float64)
    for count in (2, 3):
        mask = torch.arange(6) < count
        expected = eager(x, mask)
        loss = ours(x, mask)
        assert ours.fallback_reason is None
        loss.backward()
        torch.testing.assert_close(loss, expected)
    for count in (1, 4):
        with pytest.raises(RuntimeError):
            ours(x, torch.arange(6) < count)
