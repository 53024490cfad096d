"""Norms, windows and resizing in float64: eager's numbers, and the same bits on one thread and on two."""

import copy

import pytest
import torch
from torch import nn

from lowtide.ortmodule import ORTModule

CASES = {
    "groups": (lambda: nn.GroupNorm(4, 16), (3, 16, 9, 7)),
    "batch": (lambda: nn.BatchNorm2d(6), (8, 6, 14, 9)),
    "layer": (lambda: nn.LayerNorm((5, 7)), (51, 5, 7)),
    "root mean square": (lambda: nn.RMSNorm(33), (51, 33)),
    "windows": (lambda: nn.Unfold(3, padding=1, stride=2, dilation=2), (5, 6, 19, 28)),
    "windows past the image": (lambda: nn.Unfold((4, 2), padding=(2, 0)), (3, 2, 2, 5)),
    "sums of windows": (lambda: nn.Fold((28, 29), 3, padding=1), (5, 6 * 9, 28 * 29)),
    "nearest": (lambda: nn.Upsample(size=(31, 17)), (8, 6, 28, 9)),
    "fewer of the nearest": (lambda: nn.Upsample(size=(3, 7)), (8, 6, 28, 9)),
    "bilinear": (lambda: nn.Upsample(size=(31, 17), mode="bilinear"), (8, 6, 28, 9)),
}


def step(module, x):
    """The result and all gradients."""
    x = x.clone().requires_grad_()
    y = module(x)
    y.backward(torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape))
    return [y.detach(), x.grad, *(parameter.grad for parameter in module.parameters())]


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_eagers_on_any_threads(name):
    make, shape = CASES[name]
    torch.manual_seed(0)
    module, x = make().double(), torch.randn(shape, dtype=torch.float64)
    found, threads = {}, torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            engine = ORTModule(copy.deepcopy(module))
            found[count] = step(engine, x)
            assert engine.fallback_reason is None and "reference." in engine.text("program")
    finally:
        torch.set_num_threads(threads)
    for wanted, one, two in zip(step(module, x), found[1], found[2], strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-11, atol=1e-11)
        assert torch.equal(one, two)
