"""A dropout that drops nothing returns the tensor that it was given, in eager: a graph had another one with the same
numbers, and what was asked of it, or written into it, was of that one."""

import copy

import pytest
import torch
from modules import Of, x
from torch.nn import functional

from lowtide.ortmodule import ORTModule


def is_input(dropped, given):
    return 2.0 if dropped is given else 3.0


def asks(drop):
    def forward(m, a):
        y = m.l(a)
        return y * is_input(drop(y), y)

    return forward


def writes(drop):
    def forward(m, a):
        y = m.l(a)
        drop(y).add_(1)
        return y * 2

    return forward


DROPS = {
    "p is 0": lambda y: functional.dropout(y, 0.0),
    "not in training": lambda y: functional.dropout(y, 0.5, False),
    "torch.dropout": lambda y: torch.dropout(y, p=0.5, train=False),
    "alpha": lambda y: functional.alpha_dropout(y, 0.5, training=False),
    "keywords": lambda y: functional.dropout(input=y, p=0, training=True),
    "a layer": torch.nn.Dropout(0.0),
}


@pytest.mark.parametrize("use", [asks, writes])
@pytest.mark.parametrize("name", DROPS)
def test_it_is_its_input(use, name):
    module = Of(use(DROPS[name])).double()
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    found, expected = (each(x().double()) for each in (wrapped, eager))
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(module.l.weight.grad, eager.l.weight.grad)
    assert wrapped.fallback_reason is None


def test_a_probability_that_is_none_is_eagers_error():
    wrapped = ORTModule(Of(lambda m, a: functional.dropout(m.l(a), 2.0, False)))
    with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
        wrapped(x())
