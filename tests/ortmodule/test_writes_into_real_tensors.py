"""Attributes that are tensors and no buffers, which forward writes: PyTorch's exporter computed `self.steps += 1` in
each trace, on the tensor itself, and the first call had it twice. And it answered `int(self.steps)` by what the first
trace found, in all later calls too."""

import copy

import pytest
import torch
from modules import of

from lowtide.ortmodule import DebugOptions, ORTModule

TABLE = torch.ones(4, dtype=torch.float64)


def _scaled(m, x):
    m.held.mul_(0.9)
    return m.l(x) * m.held


def _counted(m, x):
    m.steps += 1
    return m.l(x) * m.steps


def _result(m, x):
    return m.l(x) * m.steps.add_(1)


def _of_a_dict(m, x):
    m.table["held"].sub_(0.1)
    return m.l(x) + m.table["held"]


def _of_a_global(m, x):
    TABLE.mul_(0.9)
    return m.l(x) * TABLE


def _copied(m, x):
    h = m.l(x) + m.held
    m.held[...] = m.steps
    m.steps.copy_(m.one[0] * 2)
    return h * m.held


def _by_out(m, x):
    torch.add(m.held, 1, out=m.held)
    return m.l(x) * m.held


def _foreach(m, x):
    torch._foreach_mul_([m.held, m.one], 0.9)
    return m.l(x) * m.held * m.one


def _asked_behind_a_write(m, x):
    m.steps += 1
    return m.l(x) * (2 if int(m.steps) % 2 else 1)


def _float_behind_a_write(m, x):
    m.one.mul_(0.9)
    return m.l(x) * float(m.one)


def _asked_before_a_write(m, x):
    scale = m.one.item()
    m.one.mul_(2)
    return m.l(x) * scale


def _list_behind_a_write(m, x):
    m.held.mul_(2)
    return m.l(x) * m.held.tolist()[1]


def _computed_and_asked(m, x):
    scale = float(m.one * 2 + m.steps)
    m.one.mul_(2)
    return m.l(x) * scale


def _replaced_and_asked(m, x):
    m.one = m.one * 2
    return m.l(x) * float(m.one)


def _state(net):
    return [net.held, net.steps, net.one, net.table["held"]]


def _net(forward):
    net = of(forward)
    net.held, net.one = torch.ones(4, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    net.steps, net.table = torch.zeros((), dtype=torch.float64), {"held": torch.ones(4, dtype=torch.float64)}
    return net


def _step(net, x, table):
    TABLE.copy_(table)
    net.zero_grad()
    loss = net(x).pow(2).sum()
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in net.parameters()), TABLE.clone()]


_IN_GRAPH = [_scaled, _counted, _result, _of_a_dict, _of_a_global, _copied, _by_out, _foreach]
_ASKED = [
    *(_asked_behind_a_write, _float_behind_a_write, _asked_before_a_write, _list_behind_a_write),
    *(_computed_and_asked, _replaced_and_asked),
]


@pytest.mark.parametrize("forward", [*_IN_GRAPH, *_ASKED])
@pytest.mark.parametrize("in_pieces", [False, True])
def test_are_as_in_eager(forward, in_pieces, monkeypatch):
    monkeypatch.setenv("LOWTIDE_PIECES", str(int(in_pieces)))
    net = _net(forward)
    twin = copy.deepcopy(net)
    wrapped, table = ORTModule(twin, DebugOptions()), torch.ones(4, dtype=torch.float64)
    for batch in (3, 5, 3, 3):
        x = torch.randn(batch, 4, dtype=torch.float64)
        expected = _step(net, x, table)
        for found, value in zip(_step(wrapped, x, table), expected, strict=True):
            torch.testing.assert_close(found, value, rtol=1e-9, atol=1e-9)
        assert all(torch.equal(found, value) for found, value in zip(_state(twin), _state(net), strict=True))
        table = expected[-1]
    if forward in _IN_GRAPH:
        assert wrapped.fallback_reason is None
        assert wrapped.transition_counts() == {"in training mode": {"first call": 1}}


def test_numbers_that_others_write_are_read_again():
    net = _net(lambda m, x: m.l(x) * m.one.item() * (2 if m.steps > 2 else 1))
    twin = copy.deepcopy(net)
    wrapped, table = ORTModule(twin, DebugOptions()), torch.ones(4, dtype=torch.float64)
    for value in (1.0, 1.0, 3.0):
        for module in (net, twin):
            module.one.fill_(value)
            module.steps.fill_(value)
        x = torch.randn(3, 4, dtype=torch.float64)
        for found, expected in zip(_step(wrapped, x, table), _step(net, x, table), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


_AS_NUMBERS = {
    "an index": lambda m, x: m.l(x)[:, m.number],
    "an end": lambda m, x: m.l(x)[:, : m.number],
    "a size": lambda m, x: m.l(x).expand(m.number, -1, -1),
    "a size in a list": lambda m, x: m.l(x).split([m.number, 4 - m.number], 1)[0],
    "an argument": lambda m, x: m.l(x).narrow(1, 0, m.number + 1),
    "of arange": lambda m, x: m.l(x) + torch.arange(m.number).sum(),
    "in a literal": lambda m, x: m.l(x) * torch.tensor([m.number, 1, 2, 3]),
    "a factor": lambda m, x: torch.add(m.l(x), x, alpha=m.number),
    "a place in a list": lambda m, x: m.l(x) * [1, 2, 3, 4][m.number],
}


@pytest.mark.parametrize("name", _AS_NUMBERS)
@pytest.mark.parametrize("is_replaced", [False, True])
def test_numbers_that_pytorch_reads_itself_are_read_again(name, is_replaced):
    net = _net(_AS_NUMBERS[name])
    net.number = torch.tensor(1)
    twin = copy.deepcopy(net)
    wrapped, table = ORTModule(twin, DebugOptions()), torch.ones(4, dtype=torch.float64)
    for number in (1, 2, 3):
        for module in (net, twin):
            if is_replaced:
                module.number = torch.tensor(number)
            else:
                module.number.fill_(number)
        x = torch.randn(3, 4, dtype=torch.float64)
        for found, expected in zip(_step(wrapped, x, table), _step(net, x, table), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_a_count_that_is_computed_with_has_one_graph():
    net = _net(lambda m, x: m.l(x) * m.number + torch.stack([m.number, m.number * 2]).sum() + (m.number > 2))
    net.number = torch.tensor(1)
    wrapped = ORTModule(net, DebugOptions())
    for _ in range(3):
        net.number += 1
        wrapped(torch.randn(3, 4, dtype=torch.float64))
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1}}
