"""A submodule whose class has a __call__ of its own, which takes other arguments than its forward (as in gpytorch's
variational strategies). It was once called again with those of forward."""

import pytest
import torch
from modules import assert_same_state, pair

pytestmark = pytest.mark.usefixtures("with_pieces")


class Scaling(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def __call__(self, x, twice=False):
        if twice:
            x = x * 2
        return super().__call__(x, self.linear.weight)

    def forward(self, x, weight):
        h = self.linear(x) @ weight
        if not torch.isfinite(h).all():
            h = h.nan_to_num()
        return h.tanh()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Scaling(), Scaling()

    def forward(self, x):
        h = self.first(x)
        if h.sum() > 1e6:
            h = h / 2
        return self.second(h, twice=True).sum()


def test_it_is_called_as_in_eager():
    ours, theirs = pair(Net)
    for rows in (3, 3, 3, 5):
        x = torch.randn(rows, 4, dtype=torch.float64)
        losses = [module(x) for module in (ours, theirs)]
        torch.testing.assert_close(*losses, rtol=1e-10, atol=1e-12)
        for loss in losses:
            loss.backward()
    assert "pieces in the engine" in ours.fallback_reason
    assert_same_state(ours, theirs)
