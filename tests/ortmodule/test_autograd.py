"""Gradients and autograd's own rules: which tensors get one, pending steps, versions, no_grad."""

import pytest
import torch
from modules import Of, check, x

from lowtide.ortmodule import ORTModule


def test_parameters_and_inputs_get_pytorchs_gradients():
    check(Of(lambda m, a: torch.relu(m.l(a)).sum()), x(grad=True))


def test_frozen_parameters_get_none():
    module = Of(lambda m, a: m.other(m.l(a)), other=torch.nn.Linear(4, 4))
    module.l.weight.requires_grad_(False)
    module.other.bias.requires_grad_(False)
    check(module, x())


def test_tied_parameters_get_the_sum():
    module = Of(lambda m, a: m.other(torch.tanh(m.l(a))), other=torch.nn.Linear(4, 4))
    module.other.weight = module.l.weight
    check(module, x())


def test_unused_parameters_get_none():
    check(Of(lambda m, a: m.l(a), other=torch.nn.Linear(4, 4)), x())


def test_outputs_that_need_no_gradient_say_so():
    wrapped = ORTModule(Of(lambda m, a: (m.l(a), m.l(a).argmax(1), m.l(a).detach())))
    first, second, third = wrapped(x())
    assert wrapped.fallback_reason is None
    assert first.requires_grad and not second.requires_grad and not third.requires_grad


def test_several_forwards_may_be_pending_and_backwards_come_in_any_order():
    module = Of(lambda m, a: torch.tanh(m.l(a)) ** 2)
    wrapped = ORTModule(module)
    inputs = [x(n, 4, grad=True) for n in (3, 5, 3, 2)]
    outputs = [wrapped(a) for a in inputs]
    assert wrapped.fallback_reason is None
    for index in (2, 0, 3, 1):
        outputs[index].sum().backward()
        a = inputs[index].detach().clone().requires_grad_()
        module(a).sum().backward()
        torch.testing.assert_close(inputs[index].grad, a.grad)


def test_gradients_accumulate_and_hooks_of_parameters_run():
    wrapped = ORTModule(Of(lambda m, a: m.l(a).sum()))
    seen = []
    wrapped.l.weight.register_hook(lambda gradient: seen.append(gradient.clone()))
    wrapped.l.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p))
    for _ in range(2):
        wrapped(x()).backward()
    torch.testing.assert_close(wrapped.l.bias.grad, torch.full((4,), 6.0))
    torch.testing.assert_close(wrapped.l.weight.grad, 2 * x().sum(0).expand(4, 4))
    assert len(seen) == 4


def test_changing_what_backward_needs_is_caught():
    wrapped = ORTModule(Of(lambda m, a: torch.sigmoid(m.l(a) ** 2)))
    a = x()
    y = wrapped(a)
    assert wrapped.fallback_reason is None
    a.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = wrapped(x())
    y.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = wrapped(x())
    with torch.no_grad():
        wrapped.l.bias.add_(1)  # nothing of backward's
    y.sum().backward()


def test_no_grad_and_eval():
    module = Of(lambda m, a: m.d(m.l(a)), d=torch.nn.Dropout(0.5))
    wrapped = ORTModule(module)
    wrapped.eval()
    assert not module.training and not module.d.training
    with torch.no_grad():
        y = wrapped(x())
    assert not y.requires_grad and wrapped.fallback_reason is None
    torch.testing.assert_close(y, module.l(x()))
    check(module, x())  # in eval mode, with gradients


def test_no_grad_regions_cut_gradients():
    def forward(m, a):
        with torch.no_grad():
            b = m.l(a)
        return b * m.l(a)

    check(Of(forward), x(grad=True))


def test_outputs_without_any_gradient():
    module = Of(lambda m, a: m.l(a).argmax(1))
    wrapped = ORTModule(module)
    assert torch.equal(wrapped(x()), module(x())) and wrapped.fallback_reason is None


def test_one_tensor_for_two_arguments_gets_both_gradients():
    module = Of(lambda m, a, b: torch.tanh(m.l(a)) * b)
    a, b = x(grad=True), x(grad=True)
    wrapped = ORTModule(module)
    wrapped(a, a).sum().backward()
    module(b, b).sum().backward()
    assert wrapped.fallback_reason is None
    torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_are_inlined_with_pytorchs_gradients(reentrant):
    from torch.utils.checkpoint import checkpoint

    module = Of(lambda m, a: checkpoint(lambda y: torch.sin(m.l(y)), m.l(a), use_reentrant=reentrant))
    check(module, x(grad=True))


def test_what_a_checkpointed_layer_puts_into_a_dict_is_let_go_with_the_trace():
    """gemma4's layers share keys and values so. A hook of PyTorch's checkpoint kept the dict, which kept the hook."""
    from torch.utils.checkpoint import checkpoint

    def forward(m, a):
        shared = {}

        def first(y):
            shared["keys"] = m.l(y), torch.sin(y)
            return torch.tanh(shared["keys"][0])

        def second(y):
            keys, values = shared["keys"]
            return m.n(y) * keys + values

        return checkpoint(second, checkpoint(first, a, use_reentrant=False), use_reentrant=False)

    check(Of(forward, n=torch.nn.Linear(4, 4)), x(grad=True))


def test_inference_mode():
    module = Of(lambda m, a: m.n(m.l(a)), n=torch.nn.BatchNorm1d(4))
    wrapped = ORTModule(module)
    with torch.inference_mode():
        wrapped(x(6, 4))
    assert wrapped.fallback_reason is None and int(module.n.num_batches_tracked) == 1
