"""The exporter runs stand-ins of all modules where one submodule is found under two names: what forward reads of a
stand-in is read of the module, and guarded as such."""

import copy

import pytest
import torch
from torch import nn

from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule


class _Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(4, 4)
        self.layers = nn.ModuleList([self.project, self.project])
        self.scale, self.shifts, self.is_on = 1.0, [2.0], True

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x * self.scale + self.shifts[0] if self.is_on else x


def _scale(model):
    model.scale = 3.0


def _shift(model):
    model.shifts[0] = 5.0


def _turn_off(model):
    model.is_on = False


def _replace(model):
    model.layers[1] = nn.Linear(4, 4)
    nn.init.eye_(model.layers[1].weight)
    nn.init.ones_(model.layers[1].bias)


@pytest.mark.parametrize("change", [_scale, _shift, _turn_off, _replace])
def test_a_change_of_the_module_is_seen(change):
    eager = _Shared()
    model = copy.deepcopy(eager)
    module, x = ORTModule(model, DebugOptions(log_level=LogLevel.ERROR)), torch.randn(2, 4)
    for _ in range(2):
        torch.testing.assert_close(module(x), eager(x))
    change(eager)
    change(model)
    torch.testing.assert_close(module(x), eager(x))
    assert module.fallback_reason is None


class _Level(nn.Module):
    def __init__(self, below, heads):
        super().__init__()
        self.below, self.heads, self.project = below, heads, nn.Linear(4, 4)

    def forward(self, x):
        x = self.below(self.project(x))
        self.heads[0] = 2 * x
        return x


class _DeepSupervision(nn.Module):
    """MONAI's DynUNet: levels put what their heads make into a list that they share."""

    def __init__(self):
        super().__init__()
        self.heads, self.bottom = [torch.rand(1)], nn.Linear(4, 4)
        self.top = _Level(self.bottom, self.heads)

    def forward(self, x):
        return torch.stack([self.top(x), *self.heads], 1)


def test_a_list_that_levels_share_stays_as_long_as_it_is():
    eager = _DeepSupervision()
    model = copy.deepcopy(eager)
    module = ORTModule(model, DebugOptions(log_level=LogLevel.ERROR))
    for _ in range(3):
        x = torch.randn(2, 4)
        expected, found = eager(x), module(x)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(model.heads[0], eager.heads[0])
        expected.sum().backward()
        found.sum().backward()
    torch.testing.assert_close(model.bottom.weight.grad, eager.bottom.weight.grad)
    assert module.fallback_reason is None
