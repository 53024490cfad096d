"""Tuples and lists of users' classes that a module holds, whose methods are users' code: e3nn's Irrep is a tuple
without a length. What forward has read was looked through by these methods."""

import pytest
import torch
from modules import check


def has_none(self):
    raise TypeError("it has neither a length nor parts")


class Kind(tuple):
    __len__ = __iter__ = has_none

    @property
    def factor(self):
        return tuple.__getitem__(self, 0)


class Kinds(list):
    __len__ = has_none


class Scaled(torch.nn.Module):
    def __init__(self, kinds):
        super().__init__()
        self.body, self.kinds = torch.nn.Linear(4, 4), kinds

    def forward(self, x):
        for place in range(2):
            x = self.body(x).tanh() * self.kinds[place].factor
        return x.sum()


@pytest.mark.parametrize("holder", [tuple, Kinds])
def test_their_methods_are_not_asked(holder):
    check(Scaled(holder([Kind((2.0, "even")), Kind((3.0, "odd"))])).double(), torch.randn(3, 4, dtype=torch.float64))


def test_what_changes_in_one_is_seen():
    model = Scaled(Kinds([Kind((2.0, "even")), Kind((3.0, "odd"))])).double()
    x = torch.randn(3, 4, dtype=torch.float64)
    wrapped = check(model, x)
    for module in (model, wrapped):
        module.kinds[1] = Kind((5.0, "odd"))
    torch.testing.assert_close(wrapped(x), model(x))
    list.append(model.kinds, Kind((7.0, "even")))
    torch.testing.assert_close(wrapped(x), model(x))
