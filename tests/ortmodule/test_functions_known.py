"""Functions that compute an op of lowtide's become that op; what computes something else, or more, stays a call,
whatever its name."""

import pytest
import torch
from modules import Of
from torch.autograd import Function
from training_steps import same_training
from transformers.models.bloom.modeling_bloom import GeLUFunction

from lowtide.capture.formulas import computed_op

seen = []


def gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def gelu_gradient(x, gradient):
    t = torch.tanh(0.7978845608 * x * (1 + 0.044715 * x * x))
    return gradient * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * (0.7978845608 + 3 * 0.044715 * 0.7978845608 * x * x))


class TanhGelu(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return gelu(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gelu_gradient(x, gradient)


class OtherConstant(TanhGelu):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.0447 * x**3)))


class OtherBackward(TanhGelu):
    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gelu_gradient(x, gradient) * 3


class OtherTanh(TanhGelu):
    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gelu_gradient(x, gradient) + torch.tanh(x) - torch.tanh(x)


class Counted(TanhGelu):
    @staticmethod
    def forward(ctx, x):
        seen.append(x.shape)
        ctx.save_for_backward(x)
        return gelu(x)


class Attribute(TanhGelu):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.factor = 1
        return gelu(x)


class Branch(TanhGelu):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return gelu(x) if x.sum() > 0 else x


# What a changed or shadowed class of the library is: its name, and another function.
class Shadow(TanhGelu):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.tanh(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 2 * x


Shadow.__module__, Shadow.__qualname__ = GeLUFunction.__module__, GeLUFunction.__qualname__


@pytest.mark.parametrize("function", [TanhGelu, GeLUFunction])
def test_a_function_that_computes_an_op(function):
    assert computed_op(function.forward, function.backward) == "FastGelu"
    wrapped = same_training(Of(lambda m, a: m.l(function.apply(m.l(a)))), tolerance={"rtol": 1e-4, "atol": 1e-5})
    assert "FastGelu" in wrapped.text("training") and "PythonOp" not in wrapped.text("training")


@pytest.mark.parametrize("function", [OtherConstant, OtherBackward, OtherTanh, Counted, Attribute, Branch, Shadow])
def test_a_function_that_computes_something_else_or_more(function):
    assert computed_op(function.forward, function.backward) is None


@pytest.mark.parametrize("function", [OtherBackward, Counted, Shadow])
def test_what_is_not_known_stays_a_call(function):
    wrapped = same_training(Of(lambda m, a: m.l(function.apply(m.l(a)))))
    assert "PythonOp" in wrapped.text("training") and "FastGelu" not in wrapped.text("training")
