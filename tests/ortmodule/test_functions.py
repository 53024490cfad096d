"""Custom autograd Functions: what a forward takes, returns and marks, against PyTorch over several steps."""

import pytest
import torch
from modules import Of, x
from torch.autograd import Function
from training_steps import fresh_inputs, same_training

from lowtide.ortmodule import ORTModule


class Gelu(Function):
    """With a backward that is not the derivative, as in every class here: a lost one would be noticed."""

    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a * 0.5 * (1 + torch.erf(a / 1.41421))

    @staticmethod
    def backward(ctx, gradient):
        (a,) = ctx.saved_tensors
        return gradient * torch.tanh(a) * 3


def test_a_function_whose_result_is_the_modules_output():
    same_training(Of(lambda m, a: Gelu.apply(m.l(a))))


def test_a_function_inside_the_module():
    same_training(Of(lambda m, a: m.l(Gelu.apply(m.l(a)))))


def test_several_forwards_before_their_backwards():
    module = Of(lambda m, a: Gelu.apply(m.l(a)))
    wrapped = ORTModule(module)
    inputs = [x(n, 4, grad=True) for n in (3, 5, 2)]
    outputs = [wrapped(a) for a in inputs]
    for output, a in reversed(list(zip(outputs, inputs, strict=True))):
        output.sum().backward()
        b = a.detach().clone().requires_grad_()
        module(b).sum().backward()
        torch.testing.assert_close(a.grad, b.grad)
    assert wrapped.fallback_reason is None


def test_the_same_class_many_times_with_other_arguments():
    class Scale(Function):
        @staticmethod
        def forward(ctx, a, factor):
            ctx.factor = factor
            return a * factor

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.factor * 2, None

    def forward(m, a):
        for factor in range(1, 9):
            a = torch.tanh(Scale.apply(a, factor / 4))
        return m.l(a)

    wrapped = same_training(Of(forward))
    assert len(wrapped._training_manager.last_agent.captured.functions) == 8


def test_megatrons_functions():
    """An identity whose backward reduces, and one whose forward does."""

    class Copy(Function):
        @staticmethod
        def forward(ctx, a):
            return a

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    class Reduce(Function):
        @staticmethod
        def forward(ctx, a):
            return a * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    same_training(Of(lambda m, a: Reduce.apply(torch.relu(m.l(Copy.apply(a))))))


class Rounded(Function):
    @staticmethod
    def forward(ctx, a):
        return a.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class FirstOnly(Function):
    @staticmethod
    def forward(ctx, a, b):
        return a + b

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def test_functions_above_an_argument_without_gradient_get_zeros():
    """ibert's embeddings: a parameter that is reached through a function's backward only has zeros, one that is not
    has None."""

    def forward(m, a):
        return FirstOnly.apply(FirstOnly.apply(m.l(a), Rounded.apply(m.w) * 2), m.v * 3)

    parameters = {name: torch.nn.Parameter(x(4)) for name in ("w", "v")}
    same_training(Of(forward, **parameters))
    assert parameters["w"].grad.abs().sum() == 0 and parameters["v"].grad is None


@pytest.mark.usefixtures("with_pieces")
def test_functions_in_a_piece_without_gradients_get_zeros():
    def forward(m, a):
        scaled, rounded = m.u * 3, Rounded.apply(m.w) * 2
        if a.sum() > 1e9:
            a = a * 2
        return FirstOnly.apply(FirstOnly.apply(m.l(a), rounded), scaled)

    parameters = {name: torch.nn.Parameter(x(4)) for name in ("w", "u")}
    wrapped = same_training(Of(forward, **parameters), in_engine=False)
    assert "2 of 2 pieces" in wrapped.fallback_reason
    assert parameters["w"].grad.abs().sum() == 0 and parameters["u"].grad is None


def test_scalars_and_tuples():
    class Affine(Function):
        @staticmethod
        def forward(ctx, a, alpha, pair, name, b):
            ctx.alpha, ctx.pair = alpha, pair
            return a * alpha + b * pair[0] if name == "sum" else a

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.alpha * 5, None, None, None, gradient * ctx.pair[1]

    class Reordered(Function):
        @staticmethod
        def forward(ctx, pair, flag, a, alpha):
            ctx.alpha, ctx.pair = alpha, pair
            return a * alpha if flag else a

        @staticmethod
        def backward(ctx, gradient):
            return None, None, gradient * ctx.pair[1], None

    same_training(
        Of(lambda m, a: Reordered.apply((1.5, 2.5), True, Affine.apply(m.l(a), 0.5, (2, 3), "sum", m.l(a * 2)), 3))
    )


def test_none_and_objects():
    class Settings:
        factor = 3.0

    class Uses(Function):
        @staticmethod
        def forward(ctx, a, bias, settings, call):
            assert bias is None
            ctx.settings = settings
            return call(a) * settings.factor

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.settings.factor * 2, None, None, None

    settings = Settings()
    same_training(Of(lambda m, a: Uses.apply(m.l(a), None, settings, torch.sin)))


def test_sizes_as_arguments_follow_the_input():
    class Mean(Function):
        @staticmethod
        def forward(ctx, a, rows):
            ctx.rows = rows
            return a / rows

        @staticmethod
        def backward(ctx, gradient):
            return gradient / ctx.rows * 2, None

    module = Of(lambda m, a: Mean.apply(m.l(a), a.shape[0]))
    wrapped = same_training(module, lambda index: fresh_inputs((3 + index, 4))(index))
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1}}


def test_tensors_in_a_list_get_no_gradient():
    class Weighted(Function):
        @staticmethod
        def forward(ctx, a, others):
            ctx.save_for_backward(*others)
            return a + others[0] * others[1]

        @staticmethod
        def backward(ctx, gradient):
            first, second = ctx.saved_tensors
            return gradient * first + second, None

    same_training(Of(lambda m, a: Weighted.apply(m.l(a), [m.l(a * 2), a])))


def test_attributes_on_ctx_may_hold_tensors():
    class Attribute(Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.a, ctx.product = a, a * b
            return ctx.product.sum(0)

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.a, gradient + ctx.product

    def forward(m, a):
        y = m.l(a)
        z = Attribute.apply(y, a)
        for _ in range(3):  # keeps the memory busy
            y = torch.tanh(m.l(y))
        return z + y

    same_training(Of(forward))


def test_one_input_shared_by_two_functions():
    def forward(m, a):
        y = m.l(a)
        return Gelu.apply(y) + Gelu.apply(y) * y

    same_training(Of(forward))


def test_functions_inside_of_functions():
    class Outer(Function):
        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a)
            with torch.enable_grad():
                return Gelu.apply(a.detach()) * 2

        @staticmethod
        def backward(ctx, gradient):
            (a,) = ctx.saved_tensors
            with torch.enable_grad():
                a = a.detach().requires_grad_()
                (inner,) = torch.autograd.grad(Gelu.apply(a).sum(), a)
            return gradient * inner

    wrapped = same_training(Of(lambda m, a: Outer.apply(m.l(a))))
    assert len(wrapped._training_manager.last_agent.captured.functions) == 1


def test_a_module_called_inside_of_a_function():
    inner = torch.nn.Linear(4, 4)

    class Calls(Function):
        @staticmethod
        def forward(ctx, a, module):
            ctx.module = module
            ctx.save_for_backward(a)
            return module(a)

        @staticmethod
        def backward(ctx, gradient):
            return gradient @ ctx.module.weight * 2, None

    same_training(Of(lambda m, a: Calls.apply(m.l(a), inner)))
    same_training(Of(lambda m, a: Calls.apply(m.l(a), m.l)))
    engine = ORTModule(inner)
    same_training(Of(lambda m, a: Calls.apply(m.l(a), engine)))
    assert engine.fallback_reason is None


def test_two_classes_of_one_name():
    def make(factor):
        class Twin(Function):
            @staticmethod
            def forward(ctx, a):
                return a * factor

            @staticmethod
            def backward(ctx, gradient):
                return gradient * factor * 10

        return Twin

    first, second = make(2.0), make(3.0)
    assert first.__qualname__ == second.__qualname__
    same_training(Of(lambda m, a: second.apply(m.l(first.apply(a)))))


def test_a_class_with_the_shape_functions_of_ortmodule():
    class Shaped(Function):
        @staticmethod
        def infer_shape(node, shapes, dtypes):
            raise AssertionError("PyTorch's fake tensors tell shapes")

        @staticmethod
        def alias_input(node):
            raise AssertionError("views are found at the first call")

        @staticmethod
        def forward(ctx, a):
            return a.sum(1, keepdim=True)

        @staticmethod
        def backward(ctx, gradient):
            return gradient.expand(-1, 4) * 3

    same_training(Of(lambda m, a: Shaped.apply(m.l(a))))


def test_new_style_functions_and_their_defaults():
    class Scaled(Function):
        @staticmethod
        def forward(a, factor=2.0, *, shift=1.0):
            return a * factor + shift

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])
            ctx.factor = inputs[1]

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.factor * ctx.saved_tensors[0], None

    class Positional(Function):
        @staticmethod
        def forward(a, factor=2.0):
            return a * factor

        setup_context, backward = Scaled.setup_context, Scaled.backward

    same_training(Of(lambda m, a: Positional.apply(m.l(a)) + Positional.apply(a, 3.0)))
    same_training(Of(lambda m, a: Positional.apply(m.l(a), factor=4.0)))


def test_a_function_without_a_differentiable_input():
    class Ones(Function):
        @staticmethod
        def forward(ctx, a):
            return torch.ones_like(a)

        @staticmethod
        def backward(ctx, gradient):
            return torch.zeros_like(gradient)

    same_training(Of(lambda m, a: m.l(Ones.apply(a))), fresh_inputs((3, 4), grad=False))


def test_a_function_whose_outputs_nobody_uses_still_runs():
    seen = []

    class Counts(Function):
        @staticmethod
        def forward(ctx, a):
            seen.append(tuple(int(size) for size in a.shape))
            return a.sum(), None

        @staticmethod
        def backward(ctx, *gradients):
            raise AssertionError("nothing flows here")

    def forward(m, a):
        y = m.l(a)
        Counts.apply(y)
        return y * 2

    module = Of(forward)
    wrapped = ORTModule(module)
    wrapped(x()).sum().backward()
    seen.clear()
    for _ in range(3):
        wrapped(x()).sum().backward()
    assert wrapped.fallback_reason is None and seen == [(3, 4)] * 3


def test_evaluation_and_training_modes():
    modes = []

    class Modes(Function):
        @staticmethod
        def forward(ctx, a):
            modes.append(ctx.needs_input_grad)
            return a * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 9

    module = Of(lambda m, a: Modes.apply(m.l(a)))
    wrapped = ORTModule(module)
    check_against = module(x()).detach()
    for mode in (True, False):
        wrapped.train(mode)
        with torch.no_grad():
            y = wrapped(x())
        torch.testing.assert_close(y, check_against)
        assert not y.requires_grad
    wrapped.eval()
    modes.clear()
    same_training(module)  # in eval mode, with gradients
    assert modes.count((True,)) >= 6


def test_inside_of_no_grad():
    def forward(m, a):
        with torch.no_grad():
            scale = Gelu.apply(m.l(a))
        return m.l(a) * scale

    same_training(Of(forward))
