"""Custom Functions in the form in which ORTModule's tests and users write them: `self.function = F.apply` in a module's
constructor. Each backward differs from what PyTorch would make of the forward, so one that is ignored shows."""

import pytest
import torch
from modules import x
from torch.autograd import Function
from training_steps import fresh_inputs, same_training


class Ported(torch.nn.Module):
    def __init__(self, function, forward, **parts):
        super().__init__()
        self.function = function.apply
        self.l = torch.nn.Linear(4, 4)
        self._forward = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self._forward(self, *inputs)


class Gelu(Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return 0.5 * a * (1.0 + torch.tanh(0.79788456 * a * (1 + 0.044715 * a * a)))

    @staticmethod
    def backward(ctx, gradient):
        (a,) = ctx.saved_tensors
        return gradient * torch.sigmoid(1.7 * a) * 3


class Copy(Function):
    @staticmethod
    def forward(ctx, a):
        return a.view_as(a)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Scalars(Function):
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
        ctx.pair = pair
        return a * alpha if flag else a

    @staticmethod
    def backward(ctx, gradient):
        return None, None, gradient * ctx.pair[1], None


class Objects(Function):
    @staticmethod
    def forward(ctx, a, bias, call):
        return call(a) if bias is None else a

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 7, None, None


class Two(Function):
    @staticmethod
    def forward(ctx, a, b):
        return a + b, a * b

    @staticmethod
    def backward(ctx, first, second):
        return first * 3, second * 4


class NoneGradient(Function):
    @staticmethod
    def forward(ctx, a, weight):
        return a * 2, weight * 3

    @staticmethod
    def backward(ctx, first, second):
        return first * 5, None


class Marked(Function):
    @staticmethod
    def forward(ctx, a):
        mask = a > 0
        ctx.mark_non_differentiable(mask)
        return a * mask, mask

    @staticmethod
    def backward(ctx, gradient, _):
        return gradient * 3


class Calls(Function):
    @staticmethod
    def forward(ctx, a, module):
        with torch.no_grad():
            return module(a)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3, None


class NotDifferentiable(Function):
    @staticmethod
    def forward(ctx, a):
        return (a > 0).to(a.dtype)

    @staticmethod
    def backward(ctx, gradient):
        return None


class SavesInput(Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


class AddInPlace(Function):
    @staticmethod
    def forward(ctx, a, b):
        a.add_(b)
        ctx.mark_dirty(a)
        return a

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2, gradient * 3


class Persistent(Function):
    parameter = torch.nn.Parameter(x(4, 4))

    @staticmethod
    def forward(ctx, trigger):
        return Persistent.parameter.detach()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.sum().reshape(1)


class Shaped(Function):
    @staticmethod
    def forward(ctx, a):
        return a.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3

    @staticmethod
    def infer_shape(node, tensor_input_shapes, tensor_input_dtypes):
        return tensor_input_shapes, tensor_input_dtypes


def checkpointed(m, a):
    return torch.utils.checkpoint.checkpoint(m.function, m.l(a), use_reentrant=False)


def twins():
    """Two classes of one name."""

    def make(factor):
        class Twin(Function):
            @staticmethod
            def forward(ctx, a):
                return a.sign() + a

            @staticmethod
            def backward(ctx, gradient):
                return gradient * factor

        return Twin

    first, second = make(3), make(5)
    return Ported(first, lambda m, a: m.other(m.l(m.function(a))), other=second.apply)


# name of ORTModule's test → a module that holds `F.apply`
CASES = {
    "gelu": lambda: Ported(Gelu, lambda m, a: m.function(m.l(a))),
    "gelu_custom_func_rets_not_as_module_output": lambda: Ported(Gelu, lambda m, a: m.l(m.function(m.l(a)))),
    "megatronf": lambda: Ported(Copy, lambda m, a: torch.relu(m.l(m.function(a)))),
    "scalar_and_tuple": lambda: Ported(Scalars, lambda m, a: m.function(m.l(a), 0.5, (2, 3), "sum", m.l(a * 2))),
    "scalar_and_tuple_reordered": lambda: Ported(Reordered, lambda m, a: m.function((1.5, 2.5), True, m.l(a), 3)),
    "pointer_type": lambda: Ported(Objects, lambda m, a: m.function(m.l(a), None, torch.sin)),
    "two_outputs_function": lambda: Ported(Two, lambda m, a: sum(m.function(m.l(a), a))),
    "two_outputs_function_none_grad_fn": lambda: Ported(
        NoneGradient, lambda m, a: sum(m.function(m.l(a), m.w)), w=torch.nn.Parameter(x(4))
    ),
    "multiple_outputs_function_with_no_grad_output": lambda: Ported(Marked, lambda m, a: m.function(m.l(a))),
    "inner_module_call": lambda: Ported(Calls, lambda m, a: m.function(m.l(a), m.inner), inner=torch.nn.Linear(4, 4)),
    "share_input": lambda: Ported(Gelu, lambda m, a: (y := m.l(a), m.function(y) + m.function(y) * y)[1]),
    "checkpoint_function": lambda: Ported(Gelu, checkpointed),
    "python_op_save_input_for_backward": lambda: Ported(SavesInput, lambda m, a: m.function(a) + m.l(a)),
    "duplicate_named_functions": twins,
    "customized_shape_inference": lambda: Ported(Shaped, lambda m, a: m.function(m.l(a))),
    "InplaceUpdateInputAsOutputRequireGradWithMarkDirty": lambda: Ported(
        AddInPlace, lambda m, a: m.function(m.l(a), a) * 2
    ),
    "python_op_return_persistent_param_as_value": lambda: Ported(
        Persistent, lambda m, a: m.l(a) @ m.function(m.trigger), trigger=torch.nn.Parameter(torch.ones(1))
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_are_eagers(name):
    same_training(CASES[name]())


def test_without_a_differentiable_input():
    same_training(Ported(NotDifferentiable, lambda m, a: m.l(m.function(a))), fresh_inputs((3, 4), grad=False))


def test_several_forwards_and_modes():
    wrapped = same_training(CASES["gelu"]())
    wrapped.eval()
    with torch.no_grad():
        torch.testing.assert_close(wrapped(x()), wrapped.module(x()))
    losses = [wrapped(x(rows, 4)).sum() for rows in (2, 3, 4)]
    wrapped.zero_grad()
    for loss in losses:
        loss.backward()
    found = wrapped.l.weight.grad.clone()
    wrapped.zero_grad()
    sum(wrapped.module(x(rows, 4)).sum() for rows in (2, 3, 4)).backward()
    torch.testing.assert_close(found, wrapped.l.weight.grad, rtol=1e-4, atol=1e-5)
    assert wrapped.fallback_reason is None
