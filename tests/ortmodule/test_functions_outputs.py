"""Custom autograd Functions: what they return, and what gradients leave and reach it, against PyTorch."""

import copy

import torch
from modules import Of, assert_same, step, x
from torch.autograd import Function
from training_steps import same_training

from lowtide.ortmodule import ORTModule


def test_two_outputs():
    class Two(Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a + b, a * b

        @staticmethod
        def backward(ctx, first, second):
            a, b = ctx.saved_tensors
            return first * 2 + second * b, first + second * a * 2

    def forward(m, a):
        total, product = Two.apply(m.l(a), a)
        return total * 2, torch.sin(product)

    same_training(Of(forward))
    # One of them unused: its gradient is zeros for backward.
    same_training(Of(lambda m, a: Two.apply(m.l(a), a)[1]))


def test_a_gradient_of_none():
    class Half(Function):
        @staticmethod
        def forward(ctx, a, weight):
            ctx.save_for_backward(weight)
            return a * weight, a + weight

        @staticmethod
        def backward(ctx, first, second):
            (weight,) = ctx.saved_tensors
            return first * weight + second * 2, None

    module = Of(lambda m, a: sum(Half.apply(m.l(a), m.w)))
    module.w = torch.nn.Parameter(x(4))
    wrapped = same_training(module)
    assert wrapped.w.grad is None


def test_gradients_that_turn_out_to_be_none():
    switches = {"a": True, "weight": True}

    class Sometimes(Function):
        @staticmethod
        def forward(ctx, a, weight):
            ctx.save_for_backward(a, weight)
            return a * weight

        @staticmethod
        def backward(ctx, gradient):
            a, weight = ctx.saved_tensors
            found = gradient * weight * 2, (gradient * a * 3).sum(0)
            return tuple(g if on else None for g, on in zip(found, switches.values(), strict=True))

    def forward(m, a):
        y = Sometimes.apply(m.first(a), m.w)
        return Sometimes.apply(torch.tanh(y), m.v) + m.l(a)

    module = Of(forward, first=torch.nn.Linear(4, 4))
    module.w, module.v = torch.nn.Parameter(x(4)), torch.nn.Parameter(x(4) + 1)
    wrapped = ORTModule(copy.deepcopy(module))
    for a_on, weight_on in ((True, True), (False, True), (True, False), (False, False), (True, True)):
        switches.update(a=a_on, weight=weight_on)
        assert_same(step(wrapped, (x(grad=True),)), step(module, (x(grad=True),)))
        assert wrapped.fallback_reason is None


def test_outputs_that_take_no_gradient():
    class Marked(Function):
        @staticmethod
        def forward(ctx, a):
            mask, rank = (a > 0).to(a.dtype), a.argsort(1)
            ctx.mark_non_differentiable(mask, rank)
            ctx.save_for_backward(mask)
            return a * mask, mask, rank

        @staticmethod
        def backward(ctx, gradient, _, __):
            (mask,) = ctx.saved_tensors
            return gradient * (mask + 2)

    def forward(m, a):
        y, mask, rank = Marked.apply(m.l(a))
        return y * mask, mask, rank

    wrapped = same_training(Of(forward))
    y, mask, rank = wrapped(x())
    assert y.requires_grad and not mask.requires_grad and not rank.requires_grad
    # PyTorch's own gradient of what only depends on the mask is none.
    same_training(Of(lambda m, a: m.l(a) + Marked.apply(m.other(a))[1], other=torch.nn.Linear(4, 4)))


def test_gradients_that_are_not_materialized():
    seen = []

    class Sparse(Function):
        @staticmethod
        def forward(ctx, a):
            ctx.set_materialize_grads(False)
            return a * 2, a * 3, a.sum(0)

        @staticmethod
        def backward(ctx, first, second, third):
            seen.append((first is None, second is None, third is None))
            assert second is None
            return first * 5 + third

    def forward(m, a):
        first, _, third = Sparse.apply(m.l(a))
        return first, third

    same_training(Of(forward))
    assert set(seen) == {(False, True, False)}


def test_a_function_that_returns_its_input():
    class Same(Function):
        @staticmethod
        def forward(ctx, a, b):
            return a, b * 2

        @staticmethod
        def backward(ctx, first, second):
            return first * 7, second

    same_training(Of(lambda m, a: Same.apply(m.l(a), a)))
    same_training(Of(lambda m, a: torch.add(*Same.apply(m.l(a), m.l.weight.sum(0)))))


def test_a_function_that_returns_a_view_of_its_input():
    class Turned(Function):
        @staticmethod
        def forward(ctx, a):
            return a.t()[1:]

        @staticmethod
        def backward(ctx, gradient):
            return torch.cat([gradient[:1] * 0 + 1, gradient * 2]).t()

    same_training(Of(lambda m, a: Turned.apply(m.l(a)) * 3))


def test_a_persistent_parameter_returned_as_a_value():
    class Gather(Function):
        parameter = torch.nn.Parameter(x(4, 4))

        @staticmethod
        def forward(ctx, trigger, scale):
            return Gather.parameter.detach() if scale is None else Gather.parameter * scale

        @staticmethod
        def backward(ctx, gradient):
            return gradient.sum().reshape(1), None

    module = Of(lambda m, a: m.l(a) @ Gather.apply(m.trigger, None) + (a @ Gather.apply(m.trigger, 2.0)))
    module.trigger = torch.nn.Parameter(torch.ones(1))
    same_training(module)


def test_saving_the_input_for_backward():
    class Saves(Function):
        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a)
            return a.detach() * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0]

    # The input is the user's tensor, a parameter, and a value of the graph.
    same_training(Of(lambda m, a: Saves.apply(a) + m.l(a)))
    same_training(Of(lambda m, a: a @ Saves.apply(m.l.weight)))
    same_training(Of(lambda m, a: m.l(Saves.apply(torch.relu(m.l(a))))))
