"""What libraries note by the class of a tensor while forward is traced, and records that they copy: einops, einx."""

import pytest
import torch
from counted import assert_one_graph
from modules import Of, assert_same, step

from lowtide.ortmodule import ORTModule

_BACKENDS = {}


def looked_up(m, x):
    """As einops does, which was refused: the trace's own class of tensors was a change that no call would find made."""
    y = m.l(x)
    if type(y) not in _BACKENDS:
        _BACKENDS[type(y)] = torch.tanh
    return _BACKENDS[type(y)](y)


class Registry:
    def __init__(self, other=None):
        self.backends, self.names = {}, ["tanh"]
        if other is not None:
            self.backends.update(other.backends)
            self.names = list(other.names)

    def find(self, *tensors):
        return self.backends.setdefault(tuple(map(type, tensors)), torch.tanh)


class Library:
    def __init__(self):
        self.state = Registry()

    def find(self, *tensors):
        self.state = Registry(self.state)
        return self.state.find(*tensors)


_LIBRARY = Library()


def copied(m, x):
    """As einx does: a registry is replaced by an equal one in each call."""
    y = m.l(x)
    return _LIBRARY.find(y, x)(y)


@pytest.mark.parametrize("forward", [looked_up, copied], ids=lambda forward: forward.__name__)
def test_tables_by_class_are_no_change(forward):
    module = Of(forward).double()
    module(torch.ones(2, 4).double())
    assert_one_graph(module, [(torch.randn(rows, 4).double(),) for rows in (3, 3, 5)])
    assert set(_BACKENDS) <= {torch.Tensor}


class Counted:
    def __init__(self, count):
        self.count = count


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(4, 4)
        self.state = Counted(0)

    def forward(self, x):
        self.state = Counted(self.state.count + 1)
        return self.l(x) * self.state.count


def test_a_record_that_is_replaced_by_another_is_a_change():
    eager, wrapped = Counting().double(), ORTModule(Counting().double())
    wrapped.load_state_dict(eager.state_dict())
    for rows in (3, 3, 5, 5):
        x = torch.randn(rows, 4).double()
        assert_same(step(wrapped, (x,)), step(eager, (x,)))
    assert wrapped.state.count == eager.state.count == 4
