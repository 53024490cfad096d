"""Numbers that forward takes out of a tensor which an object holds, no buffer: `self.strides.tolist()`. No op of the
trace gives them, so the graph had them as constants, and a write into the tensor left its losses as they were."""

import copy

import pytest
import torch
from modules import of

from lowtide.ortmodule import DebugOptions, ORTModule

TABLE = torch.tensor([1.0, 3.0, 1.0], dtype=torch.float64)


def _tolist(m, x):
    return m.l(x) * sum(m.held.tolist())


def _of_a_list(m, x):
    return m.l(x) * max(m.lists["held"][0].tolist())


def _of_a_global(m, x):
    return m.l(x) * TABLE.tolist()[1]


def _text(m, x):
    return m.l(x) * (2 if "3" in repr(m.held) else 1)


def step(net, x):
    net.zero_grad()
    loss = net(x).pow(2).sum()
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in net.parameters())]


@pytest.mark.parametrize("forward", [_tolist, _of_a_list, _of_a_global, _text])
def test_are_read_again_after_a_write(forward, monkeypatch):
    monkeypatch.setitem(globals(), "TABLE", TABLE.clone())
    net = of(forward)
    net.held = torch.tensor([1.0, 3.0, 1.0], dtype=torch.float64)
    net.lists = {"held": [net.held]}
    twin = copy.deepcopy(net)
    wrapped, x = ORTModule(twin, DebugOptions()), torch.randn(3, 4, dtype=torch.float64)

    def assert_as_eager():
        for found, expected in zip(step(wrapped, x), step(net, x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        assert wrapped.fallback_reason is None

    assert_as_eager()
    assert_as_eager()
    for held in (net.held, twin.held, TABLE):
        held[1] = 7.0
    assert_as_eager()
    for module in (net, twin):
        module.held = torch.tensor([1.0, 5.0, 3.0], dtype=torch.float64)
        module.lists["held"][0] = module.held
    assert_as_eager()


def test_one_graph_serves_tensors_that_nobody_writes_into(monkeypatch):
    exported, original = [], torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda *args, **kwargs: exported.append(1) or original(*args, **kwargs))
    net = of(_tolist)
    net.held = torch.tensor([1.0, 3.0, 1.0], dtype=torch.float64)
    wrapped = ORTModule(net, DebugOptions())
    for batch in (3, 3, 5):
        step(wrapped, torch.randn(batch, 4, dtype=torch.float64))
    assert len(exported) == 1 and wrapped.fallback_reason is None
