"""Steps that end before their time: Ctrl-C, exceptions of custom functions, allocations that fail. The next step gives
what it would have given without them."""

import contextlib
import copy
import re
import resource
import signal
import threading

import pytest
import torch

import lowtide
from lowtide.errors import OutOfMemory
from lowtide.ortmodule import ORTModule


class Trap(torch.autograd.Function):
    """In the middle of both halves of a step, does what it is armed with."""

    forward_trap = backward_trap = None

    @staticmethod
    def forward(ctx, a):
        if Trap.forward_trap is not None:
            Trap.forward_trap()
        ctx.save_for_backward(a)
        return a * 2

    @staticmethod
    def backward(ctx, gradient):
        if Trap.backward_trap is not None:
            Trap.backward_trap()
        return gradient * 2


class Model(torch.nn.Module):
    """Random numbers and statistics on both sides of the trap, and a count that forward writes."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, a):
        self.count += 1
        y = Trap.apply(torch.nn.functional.dropout(self.norm(self.first(a)), 0.3))
        return torch.nn.functional.dropout(self.last(torch.tanh(y)), 0.3) * self.count


@pytest.fixture(scope="module")
def captured():
    """One export and one plan for all tests; each gets the weights and buffers of the start."""
    torch.manual_seed(0)
    wrapped = ORTModule(Model())
    start = copy.deepcopy(wrapped.state_dict())
    step(wrapped)
    assert wrapped.fallback_reason is None and "Trap" in wrapped.explain()
    return wrapped, start


@pytest.fixture
def wrapped(captured):
    begin_anew(*captured)
    yield captured[0]
    Trap.forward_trap = Trap.backward_trap = None


def begin_anew(module, start):
    module.load_state_dict(start)
    module.zero_grad()
    torch.manual_seed(3)


def batch(rows=6):
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows))


def step(module, rows=6):
    module(batch(rows)).square().sum().backward()


def state_of(module):
    tensors = [*module.parameters(), *module.buffers()]
    gradients = [p.grad for p in module.parameters()]
    return [None if tensor is None else tensor.detach().clone() for tensor in tensors + gradients]


def same(first, second):
    return all(
        (one is None and other is None) or torch.equal(one, other) for one, other in zip(first, second, strict=True)
    )


def raising(error):
    def trap():
        raise error

    return trap


def interrupt():
    signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def a_handler_that_does_nothing():
    """So only the engine's own look at the signal is left."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def allocate():
    torch.empty(1 << 50)


TRAPS = {
    "exception": (raising(KeyError("mine")), KeyError, "mine"),
    "Ctrl-C": (interrupt, KeyboardInterrupt, None),
    "exit": (raising(SystemExit(3)), SystemExit, "3"),
    "allocation of PyTorch": (allocate, RuntimeError, "memory"),
}


@pytest.mark.parametrize("name", TRAPS)
def test_a_forward_that_ends_in_the_middle_has_not_been(captured, wrapped, name):
    trap, error, text = TRAPS[name]
    step(wrapped)
    before, random = state_of(wrapped), torch.get_rng_state()
    Trap.forward_trap = trap
    with pytest.raises(error, match=text):
        wrapped(batch())
    Trap.forward_trap = None
    assert same(state_of(wrapped), before) and torch.equal(torch.get_rng_state(), random)
    step(wrapped)
    found = state_of(wrapped)
    assert wrapped.fallback_reason is None
    begin_anew(*captured)
    step(wrapped)
    step(wrapped)
    assert same(state_of(wrapped), found)


@pytest.mark.parametrize("name", TRAPS)
def test_a_backward_that_ends_in_the_middle_has_not_been(captured, wrapped, name):
    trap, error, text = TRAPS[name]
    step(wrapped)
    loss = wrapped(batch()).square().sum()
    before, random = state_of(wrapped), torch.get_rng_state()
    Trap.backward_trap = trap
    with pytest.raises(error, match=text):
        loss.backward()
    Trap.backward_trap = None
    assert same(state_of(wrapped), before) and torch.equal(torch.get_rng_state(), random)
    step(wrapped)
    found = state_of(wrapped)
    begin_anew(*captured)
    step(wrapped)
    wrapped(batch())  # its forward has been
    step(wrapped)
    assert same(state_of(wrapped), found)


@pytest.mark.parametrize("half", ["forward", "backward"])
def test_the_engine_looks_for_ctrl_c_between_steps(wrapped, half):
    loss = wrapped(batch()).square().sum()
    before = state_of(wrapped)
    setattr(Trap, f"{half}_trap", interrupt)
    with a_handler_that_does_nothing(), pytest.raises(KeyboardInterrupt, match="interrupted at step"):
        wrapped(batch()) if half == "forward" else loss.backward()
    setattr(Trap, f"{half}_trap", None)
    assert same(state_of(wrapped), before)
    step(wrapped)
    assert wrapped.fallback_reason is None and wrapped.first.weight.grad is not None


def test_ctrl_c_while_exporting():
    armed = threading.Event()  # a list would be put back when the export fails
    armed.set()

    class Interrupted(Model):
        def forward(self, a):
            if armed.is_set():
                armed.clear()
                interrupt()
            return super().forward(a)

    torch.manual_seed(0)
    wrapped = ORTModule(Interrupted())
    before, random = state_of(wrapped), torch.get_rng_state()
    kinds = [type(parameter) for parameter in wrapped.parameters()]
    with pytest.raises(KeyboardInterrupt):
        wrapped(batch())
    assert same(state_of(wrapped), before) and torch.equal(torch.get_rng_state(), random)
    assert [type(parameter) for parameter in wrapped.parameters()] == kinds
    step(wrapped)
    assert wrapped.fallback_reason is None and wrapped.count.item() == 1


@contextlib.contextmanager
def no_more_memory(spare_bytes):
    """New mappings of more than `spare_bytes` in all fail."""
    lowtide.release_memory()
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + spare_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_no_memory_for_the_arena(wrapped):
    step(wrapped)
    big = batch(1_000_000)
    before, random = state_of(wrapped), torch.get_rng_state()
    with no_more_memory(16 << 20), pytest.raises(OutOfMemory, match="could not allocate [0-9]+ bytes") as raised:
        wrapped(big)
    _, headline, *values = str(raised.value).splitlines()
    made_by = r"[^()]+ \((.*)\)"  # "Gemm, gradient of: (first, model.py:9)"
    assert re.fullmatch(rf"the largest values of the step, at its peak of \d+ bytes in {made_by}:", headline)
    line = rf"  (?:%[\w.]+: (?:output )?f32\[[\d, ]*\]|scratch) of {made_by}, (\d+) bytes"
    found = [re.fullmatch(line, value) for value in values]
    assert 1 < len(found) <= 10 and all(found), values
    assert any("first, " in match[1] and "test_interruptions.py:" in match[1] for match in found), "where in the model"
    sizes = [int(match[2]) for match in found]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] >= 4_000_000
    assert same(state_of(wrapped), before) and torch.equal(torch.get_rng_state(), random)
    step(wrapped)
    assert wrapped.fallback_reason is None and wrapped.count.item() == 2


def test_no_memory_in_backward(wrapped):
    # A gradient without strides is copied first, and there is no room for the copy.
    out = wrapped(batch(1_000_000))
    before = state_of(wrapped)
    with no_more_memory(8 << 20), pytest.raises((OutOfMemory, RuntimeError), match="memory|allocate"):
        out.backward(torch.ones(()).expand(out.shape))
    assert same(state_of(wrapped), before)
    step(wrapped)
    assert wrapped.fallback_reason is None and wrapped.first.weight.grad is not None
