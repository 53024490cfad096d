"""Convolutions [N, C, L] with windows so large that the engine's own kernels take them, channels last: eager's numbers,
whatever stands between them."""

import copy

import pytest
import torch
from torch import nn

from lowtide._lowtide import instruction_set
from lowtide.ortmodule import ORTModule

WIDE = {"kernel_size": 5, "padding": 2}  # 384 x 384 x 5 numbers


class Turned(nn.Module):
    """As encoders of speech have it: rows of features between convolutions."""

    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(384), nn.Linear(384, 384)

    def forward(self, x):
        return x + torch.tanh(self.layer(self.norm(x.transpose(1, 2)))).transpose(1, 2)


class Halves(nn.Module):
    def forward(self, x):
        left, right = x.chunk(2, dim=1)
        return torch.cat([left * torch.sigmoid(right), right], dim=1)


BETWEEN = {
    "activation": nn.GELU,
    "norm of channels": lambda: nn.BatchNorm1d(384),
    "norm of groups": lambda: nn.GroupNorm(8, 384),
    "slopes of channels": lambda: nn.PReLU(384),
    "rows": Turned,
    "halves": Halves,
    "pool": lambda: nn.MaxPool1d(3, 1, 1),
    "small windows": lambda: nn.Conv1d(384, 384, 3, padding=1, groups=384),
}


def gradients(module, x):
    x = x.clone().requires_grad_()
    y = module(x)
    y.backward(torch.linspace(-1, 1, y.numel()).view(y.shape))
    return [y.detach(), x.grad, *(parameter.grad for parameter in module.parameters())]


@pytest.mark.parametrize("name", BETWEEN)
def test_numbers_are_eagers(name):
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv1d(384, 384, **WIDE), BETWEEN[name](), nn.Conv1d(384, 384, 5, stride=2, dilation=2, padding=3)
    )
    engine = ORTModule(copy.deepcopy(module))
    for batch, length in ((2, 40), (3, 29)):
        x = torch.randn(batch, 384, length)
        for found, wanted in zip(gradients(engine, x), gradients(module, x), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-5 * (1 + wanted.abs().max().item()))
        module.zero_grad()
        engine.zero_grad()
    assert engine.fallback_reason is None
    if instruction_set() != "portable":
        assert engine.text("program").count("cpu.Conv.windows") == 2
