"""A sequence that is padded to whole blocks, worked on, and cut again to what it was: a size that is written in two
ways, `n` and `min(n, 5*((n + (-n) % 5)//5))`, of one gradient (local attention of LongT5)."""

import copy

import pytest
import torch
from modules import assert_same, step

from lowtide.compile_backend import lowtide
from lowtide.ortmodule import ORTModule

_BLOCK = 5


class Blocks(torch.nn.Module):
    def __init__(self, order, breaks=False):
        super().__init__()
        self.l, self.order, self.breaks = torch.nn.Linear(4, 4), order, breaks

    def forward(self, x):
        rows, y = x.shape[1], self.l(x)
        if rows % _BLOCK != 0:
            y = torch.nn.functional.pad(y, (0, 0, 0, -rows % _BLOCK))
        y = y.reshape(x.shape[0], y.shape[1] // _BLOCK, _BLOCK, 4)
        if self.breaks:
            torch._dynamo.graph_break()
        y = y.softmax(2).view(x.shape[0], -1, 4)[:, :rows]
        return x + y if self.order == "first" else y + x


@pytest.mark.parametrize("order", ["first", "last"])
@pytest.mark.parametrize("way", ["ORTModule", "a graph", "graphs"])
def test_what_is_cut_to_its_size_adds_to_what_was_padded(way, order):
    torch.manual_seed(0)
    reference = Blocks(order, way == "graphs").double()
    module = copy.deepcopy(reference)
    if way == "ORTModule":
        module = ORTModule(module)
    else:
        torch._dynamo.reset()
        module.compile(backend=lowtide, dynamic=True)
    for rows in (12, 13, 10):
        x = torch.randn(2, rows, 4).double()
        assert_same(step(module, (x.clone().requires_grad_(),)), step(reference, (x.clone().requires_grad_(),)))
    assert way != "ORTModule" or module.fallback_reason is None
