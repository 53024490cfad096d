"""Batch norms with momentum=None take averages of all batches so far: 1 / float(batches), a number from data in
PyTorch's own layer. One graph; each layer ended a piece."""

import copy

import pytest
import torch
from doors import DOORS, compare
from torch import nn

from lowtide.ortmodule import ORTModule

pytestmark = pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, momentum=None)
        self.last, self.rows = nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None, affine=False)

    def forward(self, x):
        return self.rows(self.last(self.norm(self.first(x)).relu().mean((2, 3))))


def _images(index):
    return [torch.randn(4 + index // 2, 2, 6, 6, dtype=torch.float64)]


@pytest.mark.parametrize("door", DOORS)
def test_averages_of_all_batches(door):
    torch.manual_seed(0)
    ours = compare(door, Net(), _images, steps=5)
    assert door != "ORTModule" or ours.fallback_reason is None


def test_the_average_goes_on_in_eval_mode_and_from_a_reset():
    torch.manual_seed(0)
    eager = Net().double()
    ours = ORTModule(copy.deepcopy(eager))
    for mode in ("train", "train", "eval", "reset", "train", "eval"):
        for module in (ours, eager):
            module.train(mode != "eval")
            if mode == "reset":
                module.norm.reset_running_stats()
        images = _images(0)
        torch.testing.assert_close(*(module(*images) for module in (ours, eager)), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(*(dict(module.named_buffers()) for module in (ours, eager)), rtol=1e-10, atol=1e-12)
        assert ours.fallback_reason is None
