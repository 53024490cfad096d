"""What the engine cannot run PyTorch runs, with one warning that names the reason; mistakes stay the user's."""

import random
import signal
import threading
import time
import warnings
from collections.abc import Mapping

import pytest
import torch
from modules import Of, check

from lowtide.errors import EngineError, FallbackWarning, UnsupportedError
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule


def x(*shape):
    return torch.randn(*(shape or (3, 4)), generator=torch.Generator().manual_seed(1))


def counting(m, a):
    m.calls += 1
    return m.l(a) * len("x" * m.calls)


def hooked(m, a):
    y = m.l(a)
    y.register_hook(lambda gradient: gradient * 7)
    return y


CASES = {
    "branch on data": (lambda m, a: m.l(a) if a.sum() > -1e9 else a, "test_fallback.py:"),
    "size from data": (lambda m, a: m.l(a) + torch.unique(a.long(), dim=0).sum(), "data"),
    "python counter": (counting, "calls"),
    "python random": (lambda m, a: m.l(a) * (1 + 0 * random.random()), "random"),
    "tensor hook": (hooked, "register_hook"),
    "sparse gradients": (
        lambda m, a: torch.nn.functional.embedding(a.long().abs() % 4, m.l.weight, sparse=True),
        "sparse",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_pytorch_runs_what_the_engine_cannot_with_one_warning(name):
    function, word = CASES[name]
    module = Of(function)
    module.calls = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wrapped = check(module, x(), steps=3, in_engine=False, tolerance={"rtol": 1e-5, "atol": 1e-5})
    ours = [str(warning.message) for warning in caught if warning.category is FallbackWarning]
    assert len(ours) == 1 and word in ours[0] and word in wrapped.fallback_reason
    assert module.calls in (0, 3)


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_backward_hooks_of_modules_still_run():
    module = Of(lambda m, a: m.l(a))
    seen = []
    module.l.register_full_backward_hook(lambda *_: seen.append(1))
    wrapped = ORTModule(module)
    wrapped(x()).sum().backward()
    assert seen == [1] and "'l'" in wrapped.fallback_reason


def test_fallback_can_be_disabled(monkeypatch):
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    with pytest.raises(UnsupportedError, match="data"):
        ORTModule(Of(CASES["size from data"][0]))(x())


def test_a_users_mistake_is_pytorchs_error_and_no_fallback():
    wrapped = ORTModule(Of(lambda m, a: m.l(a)))
    wrapped(x())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match="shape"):
            wrapped(x(3, 5))
        with pytest.raises(TypeError):
            ORTModule(Of(lambda m, a: m.l(a)))()
    assert wrapped.fallback_reason is None
    wrapped(x()).sum().backward()
    assert wrapped.fallback_reason is None


def test_an_index_out_of_range_is_an_error_that_changes_nothing():
    def forward(m, a, i):
        m.count += 1
        return torch.nn.functional.embedding(i, m.l.weight) * m.count

    module = Of(forward)
    module.register_buffer("count", torch.zeros(()))
    wrapped = ORTModule(module)
    wrapped(x(), torch.tensor([0, 3]))
    assert wrapped.fallback_reason is None
    with pytest.raises((EngineError, IndexError)):
        wrapped(x(), torch.tensor([0, 400]))
    assert module.count.item() == 1
    wrapped(x(), torch.tensor([0, 3])).sum().backward()
    assert module.count.item() == 2


def test_ctrl_c_stops_a_step_and_changes_nothing():
    def forward(m, a):
        m.count += 1
        for _ in range(60):
            a = torch.tanh(m.l(a))
        return a * m.count

    module = Of(forward)
    module.register_buffer("count", torch.zeros(()))
    wrapped = ORTModule(module)
    small = x(2, 4)
    wrapped(small)
    assert wrapped.fallback_reason is None
    big = torch.randn(200_000, 4)
    begin = time.perf_counter()
    wrapped(big)
    whole = time.perf_counter() - begin
    before = module.count.item()
    timer = threading.Timer(whole / 3, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        for _ in range(20):  # on a machine that is suddenly faster
            wrapped(big)
            before = module.count.item()
    timer.join()
    assert module.count.item() == before
    wrapped(small).sum().backward()
    assert module.count.item() == before + 1


def test_wrong_arguments_of_the_wrapper():
    with pytest.raises(TypeError, match="wraps a torch.nn.Module"):
        ORTModule(3)
    with pytest.raises(TypeError, match="LogLevel"):
        DebugOptions(log_level="INFO")
    assert DebugOptions(log_level=LogLevel.INFO).log_level is LogLevel.INFO


def test_an_argument_that_breaks_while_it_is_looked_at():
    class Odd(Mapping):
        broken = False

        def __init__(self, parts):
            self.parts = dict(parts)

        def __getitem__(self, key):
            return self.parts[key]

        def __len__(self):
            return len(self.parts)

        def __iter__(self):
            if self.broken:
                raise RuntimeError("cannot be iterated now")
            return iter(self.parts)

    module, odd = Of(lambda m, a: m.l(a["a"])), Odd({"a": x()})
    wrapped = ORTModule(module)
    wrapped(odd)
    assert wrapped.fallback_reason is None
    odd.broken = True
    with pytest.warns(FallbackWarning, match=r"RuntimeError: cannot be iterated now \(test_fallback.py:"):
        torch.testing.assert_close(wrapped(odd), module(odd))
    odd.broken = False
    wrapped(odd)
    assert wrapped.fallback_reason is None
