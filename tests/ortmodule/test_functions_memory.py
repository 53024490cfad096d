"""What custom functions are handed is the memory of the engine or of the user, not a copy, unless they keep it."""

import pytest
import torch
from modules import Of, x
from torch.autograd import Function
from torch.multiprocessing.reductions import StorageWeakRef

from lowtide.ortmodule import ORTModule


@pytest.fixture
def clones_of_a_step(monkeypatch):
    count, clone = [], torch.Tensor.clone

    def counted(tensor, *args, **kwargs):
        count.append(tensor.shape)
        return clone(tensor, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "clone", counted)

    def run(wrapped, a):
        count.clear()
        wrapped.zero_grad()
        wrapped(a).sum().backward()
        assert wrapped.fallback_reason is None
        return len(count)

    return run


def test_inputs_and_gradients_are_cloned_at_the_first_call_only(clones_of_a_step):
    seen = []

    class Reads(Function):
        @staticmethod
        def forward(ctx, a, weight, y):
            if type(a) is torch.Tensor:  # no fake one
                seen.append((a.data_ptr(), weight.data_ptr()))
            ctx.save_for_backward(a, y)
            return a @ weight + y

        @staticmethod
        def backward(ctx, gradient):
            a, y = ctx.saved_tensors
            return gradient * 2, a.t() @ gradient, gradient * y

    wrapped = ORTModule(Of(lambda m, a: Reads.apply(a, m.l.weight, m.l(a))))
    a = x()
    clones_of_a_step(wrapped, a)
    assert seen[-1] != (a.data_ptr(), wrapped.l.weight.data_ptr())
    seen.clear()
    assert [clones_of_a_step(wrapped, a) for _ in range(3)] == [0, 0, 0]
    assert set(seen) == {(a.data_ptr(), wrapped.l.weight.data_ptr())}


def test_what_a_function_keeps_is_cloned_each_time_and_stays_right(clones_of_a_step):
    kept = []

    class Keeps(Function):
        @staticmethod
        def forward(ctx, a, b):
            kept.append(a.detach())
            ctx.save_for_backward(b)
            return a * b

        @staticmethod
        def backward(ctx, gradient):
            (b,) = ctx.saved_tensors
            kept.append(gradient)
            return gradient * b, None

    def forward(m, a):
        y = m.l(a)
        z = Keeps.apply(y, a) * 2
        for _ in range(3):  # reuses memory
            z = torch.tanh(m.l(z))
        return z

    module = Of(forward)
    wrapped = ORTModule(module)
    inputs = [x(n, 4) for n in (3, 5, 2, 4)]
    counts = [clones_of_a_step(wrapped, a) for a in inputs]
    found, kept[:] = list(kept), []
    for a in inputs:
        module(a).sum().backward()
    found = [tensor for tensor in found if tensor.device.type == "cpu" and type(tensor) is torch.Tensor]
    assert len(found) == len(kept) == 8
    for ours, theirs in zip(found, kept, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert counts[1:] == [2, 2, 2]


def test_saved_results_live_once():
    storages = []

    class Saves(Function):
        @staticmethod
        def forward(ctx, a):
            y = torch.exp(a)
            storages.append(StorageWeakRef(y.untyped_storage()))
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0] * 2

    module = Of(lambda m, a: torch.tanh(Saves.apply(m.l(a))))
    wrapped = ORTModule(module)
    wrapped(x()).sum().backward()
    y = wrapped(x())
    # The graph is pending, and its saved tensor is the one in the plan's memory.
    assert storages[-1].expired()
    wrapped.zero_grad()
    y.sum().backward()
    found = wrapped.l.weight.grad.clone()
    module.zero_grad()
    module(x()).sum().backward()
    torch.testing.assert_close(found, module.l.weight.grad)


def test_saved_results_that_are_kept_stay_right():
    kept = []

    class Saves(Function):
        @staticmethod
        def forward(ctx, a):
            y = torch.exp(a)
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, gradient):
            kept.append(ctx.saved_tensors[0])
            return gradient * kept[-1]

    module = Of(lambda m, a: torch.tanh(m.l(torch.tanh(Saves.apply(m.l(a))))))
    wrapped = ORTModule(module)
    inputs = [x(n, 4) for n in (3, 5, 2)]
    for a in inputs:
        wrapped(a).sum().backward()
    for a, y in zip(inputs, kept, strict=True):
        torch.testing.assert_close(y, torch.exp(module.l(a)))


@pytest.mark.parametrize("with_gradients", [True, False])
def test_what_a_function_begins_to_keep_later_stays_right(with_gradients):
    kept, keeps = [], []

    class Late(Function):
        @staticmethod
        def forward(ctx, a, b):
            if keeps:
                kept.append(a[1:])  # a view of what was passed
            y = torch.exp(a)
            ctx.save_for_backward(y, b)
            return y

        @staticmethod
        def backward(ctx, gradient):
            y, b = ctx.saved_tensors
            if keeps:
                kept.extend((gradient, y, b))
            return gradient * y, None

    def forward(m, a):
        z = Late.apply(m.l(a), a * 2)
        for _ in range(3):  # reuses memory
            z = torch.tanh(m.l(z))
        return z

    module = Of(forward)
    wrapped = ORTModule(module)

    def step(model, a):
        output = model(a)
        if with_gradients:
            output.sum().backward()

    with torch.set_grad_enabled(with_gradients):
        for _ in range(3):
            step(wrapped, x())
        keeps.append(True)
        inputs = [x(n, 4) for n in (3, 5, 2, 4)]
        for a in inputs:
            step(wrapped, a)
        assert wrapped.fallback_reason is None
        found, kept[:] = list(kept), []
        for a in inputs:
            step(module, a)
    assert len(found) == len(kept) == (16 if with_gradients else 4)
    for ours, theirs in zip(found, kept, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_ops_without_a_lowering_are_handed_no_copies(clones_of_a_step):
    wrapped = ORTModule(Of(lambda m, a: torch.special.i0e(m.l(a))))
    assert [clones_of_a_step(wrapped, x()) for _ in range(3)][1:] == [0, 0]
