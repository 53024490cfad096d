"""Windows of 3 x 3 at strides one, which the engine multiplies by tiles of 2 x 2 places (decision 36): as near to the
numbers of float64 as eager is."""

import copy

import pytest
import torch
from torch import nn

from lowtide._lowtide import instruction_set
from lowtide.ortmodule import ORTModule


def run(model, x, dy):
    x = x.detach().clone().requires_grad_()
    y = model(x)
    y.backward(dy)
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


def errors(found, exact):
    return [((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, exact, strict=True)]


@pytest.mark.parametrize("channels, outputs, height, width", [(32, 40, 15, 16), (64, 64, 28, 28), (320, 96, 8, 9)])
def test_it_is_as_near_to_float64_as_eager(channels, outputs, height, width):
    torch.manual_seed(0)
    ours = ORTModule(nn.Conv2d(channels, outputs, 3, padding=1))
    eager = copy.deepcopy(ours.module)
    double = copy.deepcopy(eager).double()
    for images in (4, 3):  # the same graph with other sizes
        x, dy = torch.randn(images, channels, height, width), torch.randn(images, outputs, height, width)
        for model in (ours, eager, double):
            model.zero_grad()
        exact = run(double, x.double(), dy.double())
        for mine, theirs in zip(errors(run(ours, x, dy), exact), errors(run(eager, x, dy), exact), strict=True):
            assert mine < 4 * theirs + 1e-7
    if instruction_set() != "portable":
        assert ours.text("program").count("cpu.Conv.windows") == 1


def test_what_is_not_finite_stays_beside_its_place():
    torch.manual_seed(0)
    ours = ORTModule(nn.Conv2d(32, 32, 3, padding=1))
    x = torch.randn(4, 32, 16, 16)
    x[1, 3, 8, 5] = float("inf")
    finite = ours(x).isfinite().all(1)
    assert not finite[1, 7:10, 4:7].any()
    finite[1, 6:11, 3:8] = True  # the tiles that read it
    assert finite.all()
