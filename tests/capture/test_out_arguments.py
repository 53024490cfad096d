"""Calls with out=: the result comes back in the tensor that was given."""

import copy

import pytest
import torch
from torch import nn

from lowtide.ortmodule import ORTModule


class WritesIntoABuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        with torch.no_grad():
            torch.mean(x, 0, out=self.mean)
            ratio = torch.div(self.mean, 2, out=torch.empty_like(self.mean))
        return (x * self.scale - self.mean) * ratio


def spectral_norm():
    return nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))


def spectral_norm_by_hooks():
    return nn.utils.spectral_norm(nn.Linear(4, 3))


class MadeOfNothing(nn.Linear):
    """AdaLoRA's penalty of what is not orthogonal, and steps between two ends, in the dtype of out."""

    def __init__(self):
        super().__init__(4, 3, dtype=torch.float64)

    def forward(self, x):
        product = self.weight @ self.weight.T
        ones = torch.eye(*product.size(), out=torch.empty_like(product))
        steps = torch.linspace(0, 0.1, 4, out=torch.empty_like(self.weight[0]))
        return super().forward(x.double() * steps) + (product - ones).norm()


@pytest.mark.parametrize("make", [WritesIntoABuffer, spectral_norm, spectral_norm_by_hooks, MadeOfNothing])
def test_steps(make):
    torch.manual_seed(0)
    module = make()
    torch.manual_seed(0)
    wrapped = ORTModule(make())
    for batch in (3, 3, 5):
        x = torch.randn(batch, 4)
        for each in (module, wrapped):
            each.zero_grad()
            each(x).square().sum().backward()
        for ours, theirs in zip(wrapped.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
        for ours, theirs in zip(wrapped.buffers(), module.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs)
    assert wrapped.fallback_reason is None


class Widens(nn.Linear):
    def forward(self, x):
        with torch.no_grad():
            wide = torch.mul(x, 2, out=torch.empty(x.shape, dtype=torch.float64))
        return super().forward(x) + wide.sum()


def test_another_dtype_is_left_to_pytorch():
    module = Widens(4, 3)
    wrapped = ORTModule(copy.deepcopy(module))
    x = torch.randn(2, 4)
    torch.testing.assert_close(wrapped(x), module(x))
    assert "out" in wrapped.fallback_reason
