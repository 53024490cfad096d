"""Threads that use wrappers at the same time; `./dev sanitize --threads` runs these under the thread sanitizer."""

import copy
import queue
import threading

import pytest
import torch
from modules import Of, run_all, x

import lowtide
from lowtide.ortmodule import ORTModule


def pair():
    """A module, its wrapper, and a copy that stays PyTorch's."""
    module = Of(lambda m, a: torch.tanh(m.l(torch.nn.functional.dropout(torch.sin(m.l(a)), 0.0))))
    return ORTModule(module), copy.deepcopy(module)


def test_a_call_while_another_thread_exports():
    exports, was_called = threading.Event(), threading.Event()

    def slow(module, a):
        exports.set()
        was_called.wait(0.3)  # in vain, where the call has to wait for the export
        return torch.tanh(module.l(a))

    wrapped, eager = pair()
    wrapped(x())
    other = ORTModule(Of(slow))
    thread = threading.Thread(target=other, args=(x(),))
    thread.start()
    exports.wait()
    output = wrapped(x(grad=True))
    was_called.set()
    thread.join()
    torch.testing.assert_close(output, eager(x()))
    assert type(output) is torch.Tensor and output.grad_fn is not None
    assert wrapped.fallback_reason is None and other.fallback_reason is None


def test_threads_share_a_wrapper():
    wrapped, eager = pair()
    expected = {n: eager(x(n, 4)).detach() for n in (2, 3, 4, 5)}

    def work(n):
        for _ in range(5):
            leaf = x(n, 4, grad=True)
            output = wrapped(leaf)
            torch.testing.assert_close(output, expected[n])
            torch.autograd.grad(output.sum(), leaf)

    run_all(*(lambda n=n: work(n) for n in expected))
    assert wrapped.fallback_reason is None


def test_forwards_of_one_thread_have_their_backwards_in_others():
    wrapped, eager = pair()
    pending = queue.SimpleQueue()
    leaves = [x(n, 4, grad=True) for n in (2, 3, 4, 5, 6, 7)]

    def forward():
        for leaf in leaves:
            pending.put(wrapped(leaf))
        pending.put(None)
        pending.put(None)

    def backward():
        while (output := pending.get()) is not None:
            output.sum().backward()

    run_all(forward, backward, backward)
    for leaf in leaves:
        twin = leaf.detach().clone().requires_grad_()
        eager(twin).sum().backward()
        torch.testing.assert_close(leaf.grad, twin.grad)
    torch.testing.assert_close(wrapped.l.weight.grad, eager.l.weight.grad)
    assert wrapped.fallback_reason is None


def test_pending_forwards_are_dropped_in_other_threads():
    wrapped, _ = pair()
    dropped = queue.SimpleQueue()

    def forward():
        for n in range(2, 12):
            dropped.put(wrapped(x(n, 4, grad=True)))
        dropped.put(None)

    def drop():
        while dropped.get() is not None:
            lowtide.pool_bytes()

    run_all(forward, drop)
    assert lowtide.pool_bytes()["live_bytes"] >= 0 and wrapped.fallback_reason is None


def test_wrappers_that_export_while_others_train():
    trained, eager = pair()
    trained(x())
    stop = threading.Event()

    def train():
        while not stop.is_set():
            leaf = x(grad=True)
            output = trained(leaf)
            torch.testing.assert_close(output, eager(x()))
            output.sum().backward()

    def export():
        for power in (1, 2, 3):
            module = Of(lambda m, a, power=power: torch.tanh(m.l(a)) ** power)
            wrapped, twin = ORTModule(module), copy.deepcopy(module)
            torch.testing.assert_close(wrapped(x()), twin(x()))
            assert wrapped.fallback_reason is None
        stop.set()

    def guarded():
        try:
            export()
        finally:
            stop.set()

    run_all(train, train, guarded)
    assert trained.fallback_reason is None


@pytest.mark.parametrize("function", [False, True])
def test_custom_functions_in_threads(function):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            return a * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    module = Of(lambda m, a: Double.apply(m.l(a)) if function else m.l(a) * 2)
    wrapped, eager = ORTModule(module), copy.deepcopy(module)

    def work(n):
        for _ in range(3):
            leaf, twin = x(n, 4, grad=True), x(n, 4, grad=True)
            wrapped(leaf).sum().backward()
            eager(twin).sum().backward()
            torch.testing.assert_close(leaf.grad, twin.grad)

    run_all(*(lambda n=n: work(n) for n in (2, 3, 4)))
    assert wrapped.fallback_reason is None
