"""Custom autograd Functions that fake tensors cannot run, that write into their inputs, or that fail."""

import copy
import warnings

import numpy as np
import pytest
import torch
from modules import Of, check, x
from torch.autograd import Function
from training_steps import fresh_inputs, same_training

from lowtide.ortmodule import ORTModule

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


class Silent(Function):
    """As TabNet's sparsemax takes the largest value off its argument."""

    @staticmethod
    def forward(ctx, a, returns=False):
        a.sub_(a.detach().amax(dim=-1, keepdim=True))
        result = a if returns else (a * 2).exp()
        ctx.save_for_backward(result.clone())
        return result

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0] * 2, None


class SilentPair(Silent):
    @staticmethod
    def forward(ctx, a, b):
        return Silent.forward(ctx, a) + b


def _silent_of_an_activation(m, a):
    return Silent.apply(m.l(a))


def _silent_of_what_is_read_later(m, a):
    h = m.l(a).sin()
    part = h[:, 1:3]  # its memory is of h
    y = Silent.apply(part)
    return y.sum(dim=-1, keepdim=True) * h + part.sum()


def _silent_result_is_the_argument(m, a):
    return Silent.apply(m.l(a), True).cos()


def _silent_of_a_buffer(m, a):
    return m.l(a) * Silent.apply(m.level)


@pytest.mark.parametrize(
    "forward",
    [_silent_of_an_activation, _silent_of_what_is_read_later, _silent_result_is_the_argument, _silent_of_a_buffer],
)
def test_writing_without_a_mark(forward):
    module = Of(forward)
    module.register_buffer("level", torch.randn(4, dtype=torch.float64))
    wrapped = same_training(module.double(), lambda index: (torch.randn(3 + index, 4, dtype=torch.float64),))
    assert wrapped.level.amax().item() == (0 if forward is _silent_of_a_buffer else module.level.amax().item())


def _silent_of_a_parameter(m, a):
    return a * Silent.apply(m.l.weight).sum()


def _silent_of_two_views(m, a):
    h = m.l(a)
    return SilentPair.apply(h, h)


@pytest.mark.parametrize("forward", [_silent_of_a_parameter, _silent_of_two_views])
def test_writing_without_a_mark_that_is_left_to_pytorch(forward):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wrapped = same_training(Of(forward), in_engine=False)
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


def test_an_operator_that_pytorch_traces_with_another_shape_runs_there():
    labels = torch.tensor([3, 0, -1, 1])
    module = Of(lambda m, a: torch.nn.functional.multilabel_margin_loss(m.l(a), labels, reduction="none"))
    wrapped = ORTModule(copy.deepcopy(module))
    theirs = module(x(4))
    with pytest.warns(UserWarning, match="where its trace had"):
        ours = wrapped(x(4))
    assert ours.shape == theirs.shape == ()
    theirs.backward()
    ours.backward()
    assert torch.allclose(wrapped.module.l.weight.grad, module.l.weight.grad)


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
