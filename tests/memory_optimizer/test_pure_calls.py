"""Custom functions and ops without a lowering: kept, unless the user declares that they only compute."""

import logging

import pytest
import torch
from trainee import asked_for

from lowtide.errors import InvalidArgument
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule, declare_pure
from lowtide.ortmodule import pure as pure_module


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.sin(x)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, y = ctx.saved_tensors
        return dy * (torch.cos(x) + 0 * y)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

    def forward(self, x):
        return self.second(Gate.apply(self.first(x)).tanh()).sum()


@pytest.fixture(autouse=True)
def nothing_declared(monkeypatch):
    monkeypatch.setattr(pure_module, "_targets", set())


def gradients(config, caplog):
    torch.manual_seed(0)
    net = Net()
    x = torch.randn(8, 16)
    with asked_for(config), caplog.at_level(logging.INFO, logger="lowtide"):
        wrapped = ORTModule(net, DebugOptions(LogLevel.INFO))
        for _ in range(2):
            net.zero_grad()
            wrapped(x).backward()
    return [parameter.grad.clone() for parameter in net.parameters()], wrapped.text("training")


def test_a_declared_function_runs_again_with_the_same_bits(caplog):
    expected, text = gradients("", caplog)
    assert text.count("PythonOp") == 1
    declare_pure(Gate)
    found, text = gradients("PythonOp+:1:-1", caplog)
    assert text.count("PythonOp") == 2 and "recompute of" in text
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    # Eager agrees.
    torch.manual_seed(0)
    net = Net()
    net(torch.randn(8, 16)).backward()
    for parameter, gradient in zip(net.parameters(), found, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_an_undeclared_one_is_kept(caplog):
    _, text = gradients("PythonOp+:1:-1", caplog)
    assert "recompute of" not in text
    assert "PythonOp+:1:-1: PythonOp runs again only where lowtide.ortmodule.declare_pure says" in caplog.text


def test_what_is_no_call_is_refused():
    with pytest.raises(InvalidArgument, match="torch.autograd.Function class, an op of torch.ops or a name"):
        declare_pure(Net)


def test_names_of_ops():
    declare_pure(torch.ops.aten.sin, torch.ops.aten.cos.default, "mylib::gate.default")
    assert {"aten::sin.default", "aten::sin.out", "aten::cos.default", "mylib::gate.default"} <= set(
        pure_module.pure_calls()
    )
