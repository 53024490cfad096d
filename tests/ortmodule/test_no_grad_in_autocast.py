"""Regions without gradients inside of regions of torch.autocast, which torch.export merges: what they compute has no
gradient."""

import copy

import pytest
import torch

import lowtide.compile_backend
from lowtide.ortmodule import ORTModule


class Of(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(8, 8))
        self.alone = torch.nn.Parameter(torch.randn(8))
        self.norm = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(8, 8))
        self.register_buffer("mean", torch.zeros(8))


class Off(Of):
    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            with torch.no_grad():
                scale = self.w.abs().sum(0) * self.alone
            return (x @ self.w * scale).square().mean()


class ResultLeaves(Of):
    def forward(self, x):
        with torch.autocast("cpu", enabled=False), torch.no_grad():
            scale = self.w.abs().sum(0)
        return (x @ self.w * scale).square().mean()


class TwiceAndBack(Of):
    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            with torch.no_grad():
                scale = self.w.abs().sum(0)
            y = x @ self.w
            with torch.no_grad():
                scale = scale * self.w.sum(1) + y.mean(0)
                with torch.no_grad():
                    scale = scale + self.w[0]
                scale = scale * self.w[1]
            return (y * scale).square().mean()


class Updates(Of):
    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            y = self.norm(x)
            with torch.no_grad():
                self.mean.mul_(0.9).add_(y.mean(0), alpha=0.1)
            return (y - self.mean).square().mean()


class On(Of):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                scale = (x @ self.w).float().mean(0)
            y = x @ self.w
            with torch.autocast("cpu", enabled=False):
                with torch.no_grad():
                    scale = scale + self.w.sum(0)
                z = x @ self.w.t()
        return (y * scale + z).square().mean()


DOORS = {"ORTModule": ORTModule, "compile": lambda m: torch.compile(m, backend=lowtide.compile_backend.lowtide)}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", [Off, ResultLeaves, TwiceAndBack, Updates, On])
def test_what_no_grad_computes_inside_of_autocast_has_no_gradient(kind, door):
    torch.manual_seed(0)
    dtype = torch.float32 if kind is On else torch.float64
    eager = kind().to(dtype)
    module = copy.deepcopy(eager)
    wrapped = DOORS[door](module)
    for rows in (4, 6):
        x = torch.randn(rows, 8, dtype=dtype)
        expected, loss = eager(x), wrapped(x)
        torch.testing.assert_close(loss, expected)
        expected.backward()
        loss.backward()
        for of_eager, ours in zip(eager.parameters(), module.parameters(), strict=True):
            assert (ours.grad is None) == (of_eager.grad is None)
            if ours.grad is not None:
                torch.testing.assert_close(ours.grad, of_eager.grad)
        for of_eager, ours in zip(eager.buffers(), module.buffers(), strict=True):
            torch.testing.assert_close(ours, of_eager)
    if isinstance(wrapped, ORTModule):
        assert wrapped.fallback_reason is None
