"""Places among sorted numbers, and the functions of log gamma: natively, beside eager."""

import copy

import pytest
import torch
from torch import nn

from lowtide.ortmodule import ORTModule


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        self.function = function

    def forward(self, *tensors):
        return (self.function(*tensors) * self.scale).double()


def same(function, *tensors, rtol=1e-10):
    """The output and the gradient of all of them that take one."""
    found = []
    for wrap in (copy.deepcopy, ORTModule):
        module = wrap(Of(function))
        leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in tensors]
        output = module(*leaves)
        output.sum().backward()
        found.append([output, module.scale.grad, *(leaf.grad for leaf in leaves if leaf.requires_grad)])
    assert module.fallback_reason is None and "aten::" not in module.text("program")
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=1e-12, equal_nan=True)


EDGES = torch.tensor([-1.0, 0.0, 0.0, 0.5, 2.0])
VALUES = torch.tensor([[-3.0, -1.0, 0.0, 0.2], [0.5, 2.0, 7.0, float("nan")]])
ROWS = torch.stack([EDGES, EDGES * 2 - 1])


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32], ids=str)
def test_places_among_sorted_numbers(dtype, right):
    values = VALUES.nan_to_num(9) if not dtype.is_floating_point else VALUES
    values, edges, rows = values.to(dtype), EDGES.to(dtype), ROWS.to(dtype)

    def places(values, edges, rows):
        narrow = torch.bucketize(values, edges, right=right, out_int32=True)
        return (
            narrow
            + torch.searchsorted(edges, values, side="right" if right else "left").pow(2)
            + torch.searchsorted(rows, values, right=right)
        )

    same(places, values, edges, rows)


def test_an_order_of_unsorted_numbers():
    shuffled = EDGES[[4, 0, 2, 3, 1]]
    same(lambda values, edges: torch.searchsorted(edges, values, sorter=edges.argsort()), VALUES, shuffled)


POINTS = torch.tensor([-30.25, -2.5, -0.3, 1e-3, 0.4, 1.0, 1.5, 2.0, 7.7, 12.0, 1e5], dtype=torch.float64)
EXTREMES = torch.tensor([0.0, -0.0, -2.0, float("inf"), float("nan")], dtype=torch.float64)


@pytest.mark.parametrize("function", [torch.lgamma, torch.digamma, torch.special.gammaln, torch.special.psi])
def test_logarithms_of_gamma(function):
    same(function, POINTS.clone().requires_grad_(), rtol=2e-9)  # PyTorch's trigamma is short of terms
    same(function, EXTREMES)
    same(function, torch.arange(1, 5), rtol=1e-6)  # PyTorch computes in f32


def test_means_of_windows_of_one_size():
    same(lambda x: torch.ops.aten._adaptive_avg_pool2d(x, (3, 2)), torch.randn(2, 3, 6, 4).double().requires_grad_())
