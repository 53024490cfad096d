"""Custom autograd Functions: what a forward takes, returns and marks, against PyTorch over several steps."""

import warnings

import numpy as np
import pytest
import torch
from modules import Of, check, x
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


def test_a_class_with_the_ancestors_shape_functions():
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


# ---- what cannot run on fake tensors


class Windows(Function):
    """Through NumPy, as through a kernel of one's own: pairs of neighbours, and their number."""

    @staticmethod
    def forward(ctx, a, b):
        rows = np.concatenate([a.detach().numpy()[1:] + a.detach().numpy()[:-1], b.detach().numpy()])
        ctx.rows = len(a)
        return torch.from_numpy(rows * 2), torch.from_numpy((rows > 0).sum(1))

    @staticmethod
    def backward(ctx, gradient, _):
        pairs = gradient[: ctx.rows - 1] * 3
        return torch.cat([pairs[:1] * 0, pairs]), gradient[ctx.rows - 1 :]


def test_functions_that_leave_pytorch():
    module = Of(lambda m, a, b: Windows.apply(m.l(a), b))
    wrapped = same_training(module, lambda index: fresh_inputs((3 + index, 4), (4 + index, 4))(index), steps=4)
    # Sizes of results were understood: one graph for all.
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1}}


def test_sizes_that_follow_no_line_are_left_to_pytorch():
    class Square(Function):
        @staticmethod
        def forward(ctx, a):
            return torch.from_numpy(np.zeros((a.shape[0] ** 2, 2), dtype=np.float32) + a.detach().numpy().sum())

        @staticmethod
        def backward(ctx, gradient):
            return gradient.sum().expand(3, 4)

    with pytest.warns(UserWarning, match="runs in PyTorch"):
        check(Of(lambda m, a: Square.apply(m.l(a))), x(), in_engine=False)


# ---- writes


class AddInPlace(Function):
    @staticmethod
    def forward(ctx, a, b):
        a.add_(b)
        ctx.mark_dirty(a)
        return a

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2, gradient * 3


def test_a_dirty_value_of_the_graph():
    def forward(m, a):
        y = m.l(a)
        z = AddInPlace.apply(y, a)
        assert z is y
        return y * 2, z

    same_training(Of(forward))


def steps_that_write(module, needs_gradient):
    """Of both: what the input became, whether it takes a gradient now, and a gradient."""
    wrapped = ORTModule(module)
    for _ in range(3):
        found = []
        for trained in (wrapped, module):
            a, b = x(), x().requires_grad_(needs_gradient)
            module.zero_grad()
            trained(a, b).sum().backward()
            found.append((a.detach(), module.l.weight.grad.clone()))
            assert a.requires_grad == needs_gradient
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs)
    return wrapped


def test_a_dirty_input_of_the_module():
    wrapped = steps_that_write(Of(lambda m, a, b: AddInPlace.apply(a, b) * m.l(b)), False)
    assert wrapped.fallback_reason is None


def test_a_dirty_input_that_gets_a_history_is_pytorchs():
    with pytest.warns(UserWarning, match="writes into an argument or buffer that takes a gradient"):
        steps_that_write(Of(lambda m, a, b: AddInPlace.apply(a, m.l(b)) * 2), True)


def test_a_dirty_buffer():
    class Count(Function):
        @staticmethod
        def forward(ctx, count, a):
            count.add_(1)
            ctx.mark_dirty(count)
            ctx.mark_non_differentiable(count)
            return count, a * count

        @staticmethod
        def backward(ctx, _, gradient):
            return None, gradient * 2

    module = Of(lambda m, a: Count.apply(m.count, m.l(a))[1])
    module.register_buffer("count", torch.zeros(()))
    wrapped = same_training(module, steps=4)
    assert wrapped.count.item() == 4


@pytest.mark.parametrize("returns", [True, False])
def test_writing_without_a_mark_is_left_to_pytorch(returns):
    class Silent(Function):
        @staticmethod
        def forward(ctx, a):
            a.mul_(2)
            return a if returns else a + 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 3

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wrapped = same_training(Of(lambda m, a: Silent.apply(m.l(a))), in_engine=False)
    assert "changes an input in place without ctx.mark_dirty" in wrapped.fallback_reason
    assert any("Silent" in str(warning.message) for warning in caught)


# ---- what may go wrong


def test_a_list_is_no_result():
    class Listed(Function):
        @staticmethod
        def forward(ctx, a):
            return [a * 2]

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    with pytest.warns(UserWarning, match="returns a container of tensors"):
        check(Of(lambda m, a: Listed.apply(m.l(a))[0] + m.l(a)), x(), in_engine=False)


def test_a_forward_that_changes_its_mind_runs_in_pytorch():
    class Moody(Function):
        rows = 3

        @staticmethod
        def forward(ctx, a):
            return a[: Moody.rows] * 1

        @staticmethod
        def backward(ctx, gradient):
            return torch.cat([gradient, gradient[:1] * 0]) if len(gradient) < 3 else gradient

    module = Of(lambda m, a: Moody.apply(m.l(a)))
    wrapped = ORTModule(module)
    wrapped(x()).sum().backward()
    assert wrapped.fallback_reason is None
    Moody.rows = 2
    with pytest.warns(UserWarning, match="where its trace had"):
        assert wrapped(x()).shape == (2, 4)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_the_step_after_an_exception_is_as_if_it_had_not_been(where):
    class Fragile(Function):
        broken = ""

        @staticmethod
        def forward(ctx, a):
            if Fragile.broken == "forward":
                raise KeyError("mine")
            ctx.save_for_backward(a)
            return a * 2

        @staticmethod
        def backward(ctx, gradient):
            if Fragile.broken == "backward":
                raise KeyError("mine")
            return gradient * ctx.saved_tensors[0]

    module = Of(lambda m, a: Fragile.apply(m.d(m.l(a))), d=torch.nn.Dropout(0.5))
    wrapped = ORTModule(module)

    def gradient(seed):
        torch.manual_seed(seed)
        wrapped.zero_grad()
        wrapped(x()).sum().backward()
        return wrapped.l.weight.grad.clone()

    expected = [gradient(seed) for seed in (1, 2)]
    Fragile.broken = where
    with pytest.raises(KeyError, match="mine"):
        gradient(1)
    Fragile.broken = ""
    assert torch.equal(gradient(2), expected[1]) and torch.equal(gradient(1), expected[0])
    assert wrapped.fallback_reason is None
