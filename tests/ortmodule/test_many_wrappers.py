"""Dynamo caches what it compiles by code. The ninth wrapper of a class once ran pieces of wrappers that were gone."""

import gc

import pytest
import torch

from lowtide.ortmodule import ORTModule

pytestmark = pytest.mark.usefixtures("with_pieces")
WRAPPERS = 10  # more than Dynamo compiles of one function


def doubled_above_zero(h):
    if h.sum() > 0:
        h = h * 2
    return h


class Branching(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = torch.nn.Linear(4, width)

    def forward(self, x):
        return doubled_above_zero(self.up(x)).tanh()


class Looping(Branching):
    """Dynamo finds no graph in its forward: pieces begin in what is below."""

    def __init__(self, width):
        super().__init__(width)
        self.below = Branching(width)

    def forward(self, x):
        h = self.up(x)[:, :4]
        while h.sum() > 0:
            h = h - 1
        return self.below(h)


@pytest.mark.parametrize("cls", [Branching, pytest.param(Looping, marks=pytest.mark.long)])
def test_each_of_many_wrappers_has_pieces_of_its_own(cls):
    torch.compiler.reset()
    x = torch.randn(3, 4, dtype=torch.float64)
    for width in range(4, 4 + WRAPPERS):
        module = cls(width).double()
        wrapped = ORTModule(module)
        for _ in range(2):
            torch.testing.assert_close(wrapped(x), module(x), rtol=1e-10, atol=1e-12)
            gc.collect()
        assert "pieces in the engine" in wrapped.fallback_reason
        assert not wrapped.fallback_reason.startswith("0")
