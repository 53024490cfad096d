"""Ops without a lowering and custom autograd Functions, as nodes of the engine on PyTorch's own autograd."""

import torch
from modules import Of, check, x

from lowtide.ortmodule import ORTModule


class Odd(torch.autograd.Function):
    """A backward on purpose unlike the derivative; saves its input and its output."""

    @staticmethod
    def forward(ctx, a, factor):
        y = a * 2
        ctx.save_for_backward(a, y)
        ctx.factor = factor
        return y

    @staticmethod
    def backward(ctx, gradient):
        a, y = ctx.saved_tensors
        return gradient * 100 * ctx.factor + a - 3 * y, None


class Pair(torch.autograd.Function):
    """New style: two outputs, one of them not differentiable."""

    @staticmethod
    def forward(a, b):
        return a * b, (a > 0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, gradient, _):
        a, b = ctx.saved_tensors
        return gradient * b * 7, gradient * a


def test_custom_functions_keep_their_backward():
    # Between them the memory is busy: what a context saved must still be there.
    def forward(m, a):
        y = Odd.apply(m.l(a), 3.0)
        for _ in range(4):
            y = torch.tanh(m.l(y))
        return Odd.apply(y, 0.5)

    wrapped = check(Of(forward), x(grad=True), tolerance={"rtol": 1e-4, "atol": 1e-3})
    assert "Odd" in wrapped.explain()


def test_custom_functions_with_several_outputs():
    def forward(m, a):
        product, positive = Pair.apply(m.l(a), a)
        return torch.where(positive, product, product * 3)

    check(Of(forward), x(grad=True))
    check(Of(forward), x())


def test_custom_functions_in_inference():
    module = Of(lambda m, a: Odd.apply(m.l(a), 3.0))
    wrapped = ORTModule(module)
    with torch.no_grad():
        torch.testing.assert_close(wrapped(x()), module(x()))
    assert wrapped.fallback_reason is None


def test_ops_without_lowering_run_on_pytorch_with_its_gradients():
    def forward(m, a):
        y = torch.special.i0e(m.l(a))
        values, index = torch.kthvalue(y, 2, dim=1)
        return torch.cdist(y, m.l(a)) + values, index

    wrapped = check(Of(forward), x(grad=True), tolerance={"rtol": 1e-4, "atol": 1e-4})
    assert "aten::kthvalue" in wrapped.explain()


def test_pending_calls_each_have_their_context():
    wrapped = ORTModule(Of(lambda m, a: Odd.apply(m.l(a), 3.0)))
    inputs = [x(n, 4, grad=True) for n in (3, 5)]
    outputs = [wrapped(a) for a in inputs]
    for output, a in zip(outputs, inputs, strict=True):
        output.sum().backward()
        b = a.detach().clone().requires_grad_()
        wrapped.module(b).sum().backward()
        torch.testing.assert_close(a.grad, b.grad)


def test_an_exception_of_a_function_reaches_the_user_and_changes_nothing():
    class Broken(torch.autograd.Function):
        armed = False

        @staticmethod
        def forward(ctx, a):
            if Broken.armed:
                raise KeyError("mine")
            return a * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    def forward(m, a):
        m.count += 1
        return Broken.apply(m.l(a)) * m.count

    module = Of(forward)
    module.register_buffer("count", torch.zeros(()))
    wrapped = ORTModule(module)
    wrapped(x())
    assert wrapped.fallback_reason is None
    Broken.armed = True
    try:
        wrapped(x())
        raise AssertionError("nothing was raised")
    except KeyError as error:
        assert error.args == ("mine",)
    assert module.count.item() == 1
    Broken.armed = False
    wrapped(x()).sum().backward()
    assert module.count.item() == 2
