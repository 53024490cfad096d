"""What forward writes in place is in the caller's tensor, also where it lies between a larger one's numbers."""

import pytest
import torch
from torch import nn

from lowtide import compile_backend
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule


def _rows(base):
    return base[:, :, :4]


def _turned(base):
    return base.transpose(1, 2)[:, :4]


def _whole(base):
    return base


def _add(given):
    given.add_(1)


def _numbers_of_a_mask(given):
    given[given > 0] = 7


def _indices(given):
    given[torch.tensor([0, 1]), torch.tensor([2, 3])] = 7


class _Writes(nn.Module):
    def __init__(self, write):
        super().__init__()
        self.write, self.weight = write, nn.Parameter(torch.tensor(2.0))

    def forward(self, given):
        self.write(given)
        return given * self.weight


@pytest.mark.parametrize("view", [_rows, _turned, _whole])
@pytest.mark.parametrize("write", [_add, _numbers_of_a_mask, _indices])
@pytest.mark.parametrize("door", ["wrapper", "compile"])
def test_a_write_into_an_argument_is_in_what_it_is_a_view_of(view, write, door):
    eager = _Writes(write)
    if door == "wrapper":
        module = ORTModule(_Writes(write), DebugOptions(log_level=LogLevel.ERROR))
    else:
        module = torch.compile(_Writes(write), backend=compile_backend.lowtide)
    for _ in range(2):
        base = torch.randn(2, 6, 8)
        theirs = base.clone()
        expected, found = eager(view(theirs)), module(view(base))
        assert torch.equal(base, theirs)
        assert torch.equal(found, expected)
    if door == "wrapper":
        assert module.fallback_reason is None


def _neighbours(points):
    """The ball query of PointNet++: what is too far away becomes the first neighbour."""
    batch, count, _ = points.shape
    group = torch.arange(count).view(1, 1, count).repeat(batch, count, 1)
    group[torch.cdist(points, points) > 1.0] = count
    group = group.sort(dim=-1)[0][:, :, :4]
    first = group[:, :, 0].view(batch, count, 1).repeat(1, 1, 4)
    missing = group == count
    group[missing] = first[missing]
    return group


class _Grouped(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, points):
        group = _neighbours(points)
        return points[torch.arange(len(points)).view(-1, 1, 1), group] * self.scale


def test_a_piece_writes_into_a_slice_that_another_one_made():
    torch.manual_seed(0)
    eager, compiled = _Grouped(), torch.compile(_Grouped(), backend=compile_backend.lowtide)
    for _ in range(2):
        points = torch.randn(2, 9, 3)
        assert torch.equal(compiled(points), eager(points))
