"""`int(labels.max()) + 1` in forward is how many rows labels name, as torch_geometric's pools have it: one graph."""

import copy
import sys
import types
import warnings

import pytest
import torch
from torch import nn

from lowtide.ortmodule import ORTModule


class Pools(nn.Module):
    """Nodes → the mean of each graph's nodes, and their largest values."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def rows(self, labels):
        return int(labels.max()) + 1 if labels.numel() > 0 else 0

    def forward(self, x, labels):
        x, rows = self.embed(x), self.rows(labels)
        assert isinstance(x.dim(), int) and issubclass(bool, int)
        counts = x.new_zeros(rows).scatter_add_(0, labels, x.new_ones(x.size(0))).clamp(min=1)
        places = labels[:, None].expand_as(x)
        means = x.new_zeros(rows, 4).scatter_add_(0, places, x) / counts[:, None]
        return self.head(means + x.new_zeros(rows, 4).scatter_reduce_(0, places, x, "amax", include_self=False))


class ReadsItem(Pools):
    def rows(self, labels):
        return labels.max().item() + 1


def compare(wrapped, eager, labels):
    x = torch.randn(len(labels), 3, dtype=torch.float64)
    gradients = []
    for each in (wrapped, eager):
        each.zero_grad()
        output = each(x, torch.tensor(labels))
        output.square().sum().backward()
        gradients.append([output.detach(), *(parameter.grad for parameter in each.parameters())])
    torch.testing.assert_close(*gradients)


def both(module):
    torch.manual_seed(0)
    module = module.double()
    return ORTModule(copy.deepcopy(module)), module


@pytest.mark.parametrize("make", [Pools, ReadsItem])
def test_one_graph_for_any_number_of_rows(make):
    wrapped, eager = both(make())
    for labels in ([0, 0, 1, 1, 2], [0, 0, 0, 0], [0, 1, 2, 3, 4, 5], [2, 0, 1, 2]):
        compare(wrapped, eager, labels)
        assert wrapped.fallback_reason is None


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_labels_that_name_more_rows_than_there_are():
    """PyTorch runs such a call; where most are such, int() is a branch on data, as any other is."""
    wrapped, eager = both(Pools())
    compare(wrapped, eager, [0, 1, 1])
    compare(wrapped, eager, [0, 9, 5])
    assert wrapped.fallback_reason is not None
    compare(wrapped, eager, [0, 1, 1])
    assert wrapped.fallback_reason is None
    for _ in range(6):
        compare(wrapped, eager, [0, 9, 5])
    assert "branches on data" in wrapped.fallback_reason


CODE = """
import torch
class Asks(torch.nn.Linear):
    def forward(self, x, labels):
        rows = int(labels.max()) + 1
        kinds = [kind is int for kind in map(type, (1, 1.0))]
        return super().forward(x.new_zeros(rows, 3).index_add_(0, labels, x)) * sum(kinds)
"""


def test_code_that_asks_whether_a_class_is_int_keeps_the_one_there_is():
    asking = sys.modules["code_that_asks_for_int"] = types.ModuleType("code_that_asks_for_int")
    exec(CODE, vars(asking))
    wrapped, eager = both(asking.Asks(3, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for labels in ([0, 1, 1], [0, 0, 2, 1]):
            compare(wrapped, eager, labels)
    # A graph for each number: of the arguments alone.
    assert wrapped.fallback_reason is None and "int" not in vars(asking)
