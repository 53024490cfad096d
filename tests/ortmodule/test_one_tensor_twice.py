"""One tensor given for two arguments: forward may ask which object it is, and a graph knew it under two names as two
tensors, so that `if context is x` took the other branch and its losses were wrong."""

import copy
import logging

import pytest
import torch

from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule

WIDTH = 8


class Attends(torch.nn.Module):
    """Doubles what attends to itself, and adds one to what attends to what it also masks with."""

    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, context=None, mask=None):
        mixed = self.mix(x)
        if context is not None:
            mixed = mixed * context
        if context is x:
            mixed = mixed * 2
        if mask is context:
            mixed = mixed + 1
        return mixed


class Sums(torch.nn.Module):
    """What it has computed of one of `given` it does not compute again, which it knows by its id."""

    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, given):
        known = {}
        return sum(known.setdefault(id(each), self.mix(each) * (len(known) + 1)) for each in given)


def tensors(count=3):
    return [torch.randn(3, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(count)]


def gradients(net, leaves, *arguments):
    """Loss, then the gradients of parameters and arguments."""
    net.zero_grad()
    for leaf in leaves:
        leaf.grad = None
    loss = net(*arguments).pow(2).sum()
    loss.backward()
    return [loss.detach(), *(leaf.grad for leaf in (*net.parameters(), *leaves))]


def assert_as_eager(net, wrapped, leaves, *arguments):
    expected = gradients(net, leaves, *arguments)
    for found, want in zip(gradients(wrapped, leaves, *arguments), expected, strict=True):
        assert (found is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-9)


def wrap(net, level=LogLevel.WARNING):
    return ORTModule(copy.deepcopy(net), DebugOptions(level))


@pytest.mark.parametrize("places", ["012", "001", "000", "011", "010"])
def test_forward_asks_which_object_an_argument_is(places):
    net = Attends().double()
    wrapped, leaves = wrap(net), tensors()
    assert_as_eager(net, wrapped, leaves, *(leaves[int(place)] for place in places))
    assert wrapped.fallback_reason is None


def test_each_call_takes_the_graph_of_its_own_objects(caplog):
    net = Attends().double()
    wrapped, leaves = wrap(net, LogLevel.INFO), tensors()
    x, y, _ = leaves
    with caplog.at_level(logging.INFO):
        for arguments in ((x, y), (x, x), (x, y), (y, y), (x, x.detach())):
            assert_as_eager(net, wrapped, leaves, *arguments)
    assert wrapped.fallback_reason is None
    told = [line for line in caplog.messages if "is now the tensor that" in line]
    assert len(told) == 1 and "argument `context` is now the tensor that argument `x` is" in told[0]


def test_objects_of_a_list_are_told_apart():
    net = Sums().double()
    wrapped, leaves = wrap(net), tensors()
    x, y, _ = leaves
    for given in ([x, x, y], [x, y, y], [x, y, x], [x, x, x]):
        assert_as_eager(net, wrapped, leaves, given)
    assert wrapped.fallback_reason is None


def test_second_derivatives_ask_it_too():
    net = Attends().double()
    wrapped, leaves = wrap(net), tensors(1)
    x = leaves[0]
    found = []
    for each in (net, wrapped):
        (first,) = torch.autograd.grad(torch.tanh(each(x, x)).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.pow(2).sum(), x)[0])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)
