"""A custom Function's `apply` that was bound before the export, in every way that keeps a bound method.

Once only `F.apply(...)` written in forward itself was seen; of `f = F.apply` the forward was traced into the graph and
the user's backward ignored: a straight-through estimator had zero gradients without a word.
"""

import functools

import pytest
import torch
from modules import Of, check, x
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint
from training_steps import same_training

from lowtide.errors import UnsupportedError
from lowtide.ortmodule import ORTModule


class StraightThrough(Function):
    """Of whose forward PyTorch's own gradient is zero everywhere."""

    @staticmethod
    def forward(ctx, a):
        return a.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


straight_through = StraightThrough.apply
FUNCTIONS = {"sign": [StraightThrough.apply]}


class Holder:
    kept = StraightThrough.apply


class Child(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.function = StraightThrough.apply

    def forward(self, a):
        return self.function(a)


class Outer(Function):
    """Its forward calls another one, which then is a part of it."""

    @staticmethod
    def forward(ctx, a):
        return straight_through(a) + a

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 5


class OwnApply(Function):
    """With an `apply` of its own in front of PyTorch's."""

    @staticmethod
    def forward(ctx, a, factor):
        return a.sign() * factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 7, None

    @classmethod
    def apply(cls, a):
        return super().apply(a, 2.0)


def captured_around(function):
    return lambda m, a: m.l(function(m.l(a)))


def handed_on(m, a):
    def run(function, value):
        return function(value)

    return run(straight_through, m.l(a))


BOUND = {
    "a global": lambda m, a: straight_through(m.l(a)),
    "a closure": captured_around(StraightThrough.apply),
    "a default": lambda m, a, function=StraightThrough.apply: function(m.l(a)),
    "a dict and a list": lambda m, a: FUNCTIONS["sign"][0](m.l(a)),
    "a class attribute": lambda m, a: Holder.kept(m.l(a)),
    "an argument of a function": handed_on,
    "a partial": captured_around(functools.partial(StraightThrough.apply)),
    "an attribute": lambda m, a: m.function(m.l(a)),
    "a child's attribute": lambda m, a: m.child(m.l(a)),
    "inside of another Function": lambda m, a: Outer.apply(m.l(a)),
    "a checkpoint that is not reentrant": lambda m, a: checkpoint(straight_through, m.l(a), use_reentrant=False),
    "a reentrant checkpoint": lambda m, a: checkpoint(straight_through, m.l(a), use_reentrant=True),
    "an apply of the class's own": captured_around(OwnApply.apply),
    "without the checks of apply": lambda m, a: super(Function, StraightThrough).apply(m.l(a)),
}


@pytest.mark.parametrize("way", BOUND)
def test_the_users_backward_is_kept(way):
    module = Of(BOUND[way], child=Child())
    module.function = StraightThrough.apply
    wrapped = same_training(module)
    assert len(wrapped._training_manager.last_agent.captured.functions) == 1


def test_a_last_call_has_the_gradients_of_eager():
    """ORTModule's own tests end their nets so."""
    wrapped = ORTModule(Of(lambda m, a: straight_through(m.l(a))))
    (wrapped(x()) * torch.arange(12.0).view(3, 4)).sum().backward()
    assert wrapped.fallback_reason is None
    assert wrapped.l.bias.grad.tolist() == [36, 45, 54, 63]


def test_a_bound_function_of_an_argument():
    wrapped = check(Of(lambda m, a, function: function(m.l(a))), x(), straight_through, in_engine=False)
    assert "builtin" in wrapped.fallback_reason or "method" in wrapped.fallback_reason


def test_frozen_at_first():
    wrapped = ORTModule(Of(lambda m, a: straight_through(m.l(a))))
    for trains in (False, True):
        wrapped.requires_grad_(trains)
        a = x(grad=True)
        wrapped(a).sum().backward()
        torch.testing.assert_close(a.grad, 3 * wrapped.l.weight.sum(0).expand(3, 4))
        assert (wrapped.l.weight.grad is not None) == trains and wrapped.fallback_reason is None


# ---------------------------------------------------------------- what no way of ours leads to


def test_a_function_whose_call_is_not_seen_is_refused(monkeypatch):
    """A method of C code that was bound before: not one of our hooks lies in its way."""
    bound = super(Function, StraightThrough).apply
    wrapped = check(Of(lambda m, a: bound(m.l(a))), x(), in_engine=False)
    assert "StraightThroughBackward" in wrapped.fallback_reason
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    with pytest.raises(UnsupportedError, match="StraightThroughBackward"):
        ORTModule(Of(lambda m, a: bound(m.l(a))))(x())


class WithSetup(Function):
    @staticmethod
    def forward(a):
        return a.sign()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


def test_inside_of_torch_func_pytorch_runs_it():
    function = WithSetup.apply
    check(Of(lambda m, a: torch.func.grad(lambda b: function(b).sum())(m.l(a))), x(), in_engine=False)
