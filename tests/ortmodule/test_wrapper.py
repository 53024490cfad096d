"""ORTModule is an ordinary nn.Module: names, attributes, methods and copies are the wrapped module's."""

import copy
import inspect
import io

import pytest
import torch
from modules import Of

from lowtide.ortmodule import ORTModule


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 2)
        self.register_buffer("b", torch.ones(2))
        self.config = {"hidden": 4}
        self.calls = []

    def forward(self, x, scale: float = 1.0):
        """Documented."""
        return self.fc(x) * scale + self.b

    def loss(self, x):
        self.calls.append(type(self).__name__)
        return self(x).sum()


def test_names_have_no_prefix():
    net = Net()
    wrapped = ORTModule(net)
    assert list(wrapped.state_dict()) == list(net.state_dict())
    assert [name for name, _ in wrapped.named_parameters()] == ["fc.weight", "fc.bias"]
    assert [name for name, _ in wrapped.named_buffers()] == ["b"]
    assert dict(wrapped.named_modules())[""] is net and dict(wrapped.named_children())["fc"] is net.fc
    outer = torch.nn.Sequential(wrapped)
    assert list(outer.state_dict()) == ["0.fc.weight", "0.fc.bias", "0.b"] or set(outer.state_dict()) == {
        "0.fc.weight",
        "0.fc.bias",
        "0.b",
    }
    outer.load_state_dict({name: torch.zeros_like(value) for name, value in outer.state_dict().items()})
    assert net.fc.weight.abs().sum() == 0
    assert len(list(outer.parameters())) == 2


def test_signature_docstring_attributes_and_methods():
    net = Net()
    wrapped = ORTModule(net)
    assert inspect.signature(wrapped.forward) == inspect.signature(net.forward)
    assert wrapped.forward.__doc__ == "Documented."
    assert wrapped.config is net.config and wrapped.module is net
    wrapped.flag = 5
    assert net.flag == 5
    del wrapped.flag
    assert not hasattr(net, "flag")
    with pytest.raises(AttributeError):
        _ = wrapped.nothing
    wrapped.loss(torch.randn(3, 4)).backward()
    assert net.calls == ["ORTModule"], "a user's method that calls self(...) comes through the engine"


def test_modes_dtypes_and_freezing_reach_the_module():
    net = Net()
    wrapped = ORTModule(net)
    assert wrapped.training
    assert wrapped.eval() is wrapped and not net.training and not net.fc.training and not wrapped.training
    net.train()
    assert wrapped.training
    wrapped.double()
    assert net.fc.weight.dtype == torch.float64
    y = wrapped(torch.randn(3, 4, dtype=torch.float64))
    assert y.dtype == torch.float64 and wrapped.fallback_reason is None
    wrapped.requires_grad_(False)
    assert not net.fc.weight.requires_grad
    net.eval()
    assert not ORTModule(net).training and not net.training, "wrapping changes no mode"


def test_hooks_of_the_wrapper_run():
    wrapped = ORTModule(Net())
    seen = []
    wrapped.register_forward_pre_hook(lambda m, args: seen.append("before"))
    wrapped.register_forward_hook(lambda m, args, out: seen.append("after"))
    wrapped.register_full_backward_hook(lambda *_: seen.append("backward"))
    wrapped(torch.randn(3, 4)).sum().backward()
    assert seen == ["before", "after", "backward"] and wrapped.fallback_reason is None


def test_copies_and_pickles():
    wrapped = ORTModule(Net())
    a = torch.randn(3, 4)
    expected = wrapped(a)
    twin = copy.deepcopy(wrapped)
    assert twin.module is not wrapped.module
    torch.testing.assert_close(twin(a), expected)
    file = io.BytesIO()
    torch.save(wrapped, file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file, weights_only=False)(a), expected)


def test_two_wrappers_share_a_module():
    shared = torch.nn.Linear(4, 4)
    one, other = ORTModule(Of(lambda m, a: m.s(a), s=shared)), ORTModule(Of(lambda m, a: m.s(m.l(a)), s=shared))
    (one(torch.randn(2, 4)).sum() + other(torch.randn(2, 4)).sum()).backward()
    assert one.fallback_reason is None and other.fallback_reason is None and shared.weight.grad is not None
