"""Numbers that forward reads out of tensors which it has made of numbers, as asteroid's norms have their dims:
torch.arange(1, x.dim()).tolist(). They are no data, though the exporter's trace knows none of them."""

import pytest
import torch
from modules import Of
from training_steps import same_training


def _tolist(m, x):
    return m.l(x).mean(torch.arange(1, x.dim()).tolist())


def _of_a_list(m, x):
    return m.l(x).mean(torch.tensor([1, 2]).tolist())


def _ints(m, x):
    return m.l(x).sin().mean([int(dim) for dim in torch.arange(1, x.dim())])


def _items(m, x):
    return sum(m.l(x).sin().sum(dim.item()).sum() for dim in torch.arange(1, x.dim()))


def _computed(m, x):
    dims = torch.arange(2) + 1
    dims[0] = 0
    y = m.l(x).sin().sum(dims.tolist())
    return y * dims.sum() + dims[1]


def _places(m, x):
    """The tensor is in the graph, too."""
    places = torch.arange(4)
    return m.l(x)[..., places] * places * places.tolist()[3] + torch.arange(x.shape[0])[:, None, None]


@pytest.mark.parametrize("forward", [_tolist, _of_a_list, _ints, _items, _computed, _places])
def test_are_constants(forward):
    wrapped = same_training(Of(forward).double(), lambda index: (torch.randn(2 + index, 3, 4, dtype=torch.float64),))
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1}}


def test_what_data_are_written_into_is_none():
    def forward(m, x):
        rows = torch.tensor([1, 2])
        rows[0] = x.sum() > 0
        return m.l(x).mean(rows.tolist())

    same_training(
        Of(forward).double(), lambda index: (torch.randn(2 + index, 3, 4, dtype=torch.float64),), in_engine=False
    )
