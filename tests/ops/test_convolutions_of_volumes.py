"""Convolutions [N, C, D, H, W] in the engine's own kernels: large windows, and single volumes that PyTorch has no
library for. Eager's numbers."""

import copy

import pytest
import torch
from torch import nn

from lowtide.ortmodule import ORTModule

CASES = {
    "a single volume": (lambda: nn.Conv3d(20, 24, 3, padding=1), (1, 20, 6, 7, 9)),
    "a large window": (lambda: nn.Conv3d(160, 130, 3, padding=(1, 0, 2), bias=False), (2, 160, 4, 5, 6)),
    "dilated": (lambda: nn.Conv3d(16, 32, (3, 1, 2), padding=2, dilation=(2, 1, 3)), (1, 16, 5, 6, 7)),
    "padded by one side more": (lambda: nn.Conv3d(17, 18, 2, padding="same"), (1, 17, 5, 4, 3)),
    "a network": (
        lambda: nn.Sequential(
            *(
                nn.Conv3d(16, 32, 3, padding=1, bias=False),
                nn.InstanceNorm3d(32),
                nn.LeakyReLU(0.1),
                nn.Conv3d(32, 16, 3, padding=1),
            ),
            *(nn.MaxPool3d(2), nn.Conv3d(16, 16, 3, 2, 1)),
        ),
        (1, 16, 6, 8, 8),
    ),
}


def results(module, x):
    module.zero_grad()
    x = x.clone().requires_grad_()
    y = module(x)
    (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in module.parameters())]


@pytest.mark.parametrize("case", CASES)
def test_convolutions_of_volumes(case):
    make, shape = CASES[case]
    module, x = make(), torch.randn(shape)
    exact = results(copy.deepcopy(module).double(), x.double())
    wrapped = ORTModule(module)
    found = results(wrapped, x)
    assert wrapped.fallback_reason is None
    for one, wanted in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=1e-4, atol=2e-5 * float(wanted.abs().max()))
