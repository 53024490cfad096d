"""Slices of sizes that change: what lies beyond the ends is cut off, and no size is thought to be at least 1."""

import copy

import pytest
import torch

from lowtide.ortmodule import ORTModule

SLICES = {
    "in steps": lambda x, n: x[:, 5:9:2],
    "in steps to the end": lambda x, n: x[:, 5::2],
    "in steps before the end": lambda x, n: x[:, 2:-3:2],
    "from the end": lambda x, n: x[:, -n:],
    "from the end, before it": lambda x, n: x[:, -n:-1],
    "from the end in steps": lambda x, n: x[:, -n:-1:2],
    "to the end": lambda x, n: x[:, :-n],
    "the first": lambda x, n: x[:, :1],
    "all but the first": lambda x, n: x[:, 1:],
    "differences": lambda x, n: torch.diff(x, n=5),
    "written": lambda x, n: torch.slice_scatter(x, 2 * x[:, -n:-1], 1, -n, -1),
}
SIZES = ((8, 3), (3, 2), (6, 5), (1, 1), (5, 8), (8, 0), (0, 2))


class Slice(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.function = function

    def forward(self, x, y):
        return self.function(x * self.weight, y.shape[1])


def step(module, *inputs):
    """The output and the weight's gradient."""
    module.zero_grad()
    output = module(*inputs)
    (output * torch.arange(1.0, output.numel() + 1).reshape(output.shape)).sum().backward()
    return output, next(module.parameters()).grad


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
@pytest.mark.parametrize("name", SLICES)
def test_slices_at_sizes_that_change(name):
    eager, wrapped = Slice(SLICES[name]), ORTModule(Slice(SLICES[name]))
    for size, count in SIZES:
        x, y = torch.randn(4, size), torch.randn(2, count)
        torch.testing.assert_close(step(wrapped, x, y), step(eager, x, y))
        assert min(size, count) == 0 or wrapped.fallback_reason is None


def test_one_place_from_the_end():
    eager, wrapped = Slice(lambda x, n: x[:, -n]), ORTModule(Slice(lambda x, n: x[:, -n]))
    for size, count in ((8, 3), (3, 2), (5, 5)):
        x, y = torch.randn(4, size), torch.randn(2, count)
        torch.testing.assert_close(step(wrapped, x, y), step(eager, x, y))
        assert wrapped.fallback_reason is None
    with pytest.raises(IndexError):
        wrapped(torch.randn(4, 5), torch.randn(2, 8))


class Windows(torch.nn.Module):
    """Rows that overlap by half, as Longformer reads them, of memory in which the rows of a batch lie side by side."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        hidden = self.linear(x.transpose(0, 1))  # length, batch, width
        rows = hidden.transpose(0, 1).view(x.shape[0], x.shape[1] // 4, 4, 4)
        sizes, strides = list(rows.shape), list(rows.stride())
        sizes[1], strides[1] = 2 * sizes[1] - 1, strides[1] // 2
        return rows.as_strided(sizes, strides)


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_memory_read_by_strides():
    eager = Windows()
    wrapped = ORTModule(copy.deepcopy(eager))
    for batch, length in ((2, 8), (3, 16)):
        x = torch.randn(batch, length, 4)
        torch.testing.assert_close(step(wrapped, x), step(eager, x))
        assert wrapped.fallback_reason is None
    x = torch.randn(8, 2, 4).transpose(0, 1)  # an input that is not row-major: another call's may be
    torch.testing.assert_close(step(wrapped, x), step(eager, x))


AROUND_ZERO = {
    "around the middle": lambda x, n: x[:, 20 - n : 19 + n],
    "to a place before the end": lambda x, n: x[:, : 12 - n],
    "from a place before the end": lambda x, n: x[:, 12 - n :],
}


@pytest.mark.parametrize("name", AROUND_ZERO)
def test_ends_that_may_be_counted_from_the_front_or_the_back(name):
    """Relative positions are cut out of a table so. Each sign of an end has a graph."""
    module = Slice(AROUND_ZERO[name]).double()
    wrapped = ORTModule(copy.deepcopy(module))
    for columns in (5, 7, 11, 14, 15):
        inputs = torch.randn(2, 39, dtype=torch.float64), torch.randn(2, columns)
        torch.testing.assert_close(step(wrapped, *inputs), step(module, *inputs))
        assert wrapped.fallback_reason is None
    assert sum(wrapped.transition_counts()["in training mode"].values()) <= 2
