"""Policies of fallback: which failure each takes over, what PyTorch then finds, and how often users hear of it."""

import copy
import dataclasses
import re
import warnings

import pytest
import torch
from modules import Of, x

import lowtide.capture
import lowtide.store.plans
from lowtide._lowtide import Session
from lowtide.errors import (
    EngineError,
    FallbackWarning,
    InternalError,
    InvalidArgument,
    UnsupportedDevice,
    UnsupportedError,
)
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule, fallback
from lowtide.ortmodule.fallback import FallbackPolicy, parse_policy


class Thing:
    __slots__ = ()
    factor = 2


def hooked():
    module = Of(lambda m, a: m.l(a))
    module.l.register_full_backward_hook(lambda *_: None)
    return module


def on_two_devices():
    return Of(lambda m, a: m.l(a), unused=torch.nn.Linear(4, 4, device="meta"))


# policy → its exception, a module and an argument
KINDS = {
    "FALLBACK_UNSUPPORTED_DEVICE": (
        fallback.ORTModuleDeviceException,
        lambda: Of(lambda m, a: m.l(torch.ones(a.shape))),
        lambda: torch.empty(3, 4, device="meta"),
    ),
    "FALLBACK_UNSUPPORTED_DATA": (
        fallback.ORTModuleIOError,
        lambda: Of(lambda m, thing: m.l(x()) * thing.factor),
        Thing,
    ),
    "FALLBACK_UNSUPPORTED_TORCH_MODEL": (fallback.ORTModuleTorchModelException, hooked, x),
    "FALLBACK_UNSUPPORTED_ONNX_MODEL": (
        fallback.ORTModuleONNXModelException,
        lambda: Of(lambda m, a: m.l(a) if a.sum() > -1e9 else a),
        x,
    ),
}


def unsupported_output(m, a):
    return m.l(a), Thing()


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", KINDS)
def test_a_policy_takes_its_own_failures_and_no_others(name, training, monkeypatch):
    error, make, argument = KINDS[name]
    others = "|".join(other for other in KINDS if other != name)
    for policy in (name, f" {name} | FALLBACK_BAD_INITIALIZATION", "FALLBACK_FORCE_TORCH_FORWARD"):
        monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", policy)
        wrapped = ORTModule(make()).train(training)
        with pytest.warns(FallbackWarning), torch.set_grad_enabled(training):
            assert wrapped(argument()).requires_grad == training
        assert wrapped.fallback_reason
    for policy in (others, f"{name}|FALLBACK_DISABLE", "FALLBACK_DISABLE"):
        monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", policy)
        with pytest.raises(error) as raised, torch.set_grad_enabled(training):
            ORTModule(make()).train(training)(argument())
        assert type(raised.value) is error


def test_parameters_on_two_devices_are_a_matter_of_devices(monkeypatch):
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_UNSUPPORTED_DEVICE")
    wrapped = ORTModule(on_two_devices())
    where = "found 'unused.weight', 'unused.bias' on meta; 'l.weight', 'l.bias' on cpu"
    with pytest.warns(FallbackWarning, match=where):
        wrapped(x()).sum().backward()
    assert wrapped.l.weight.grad is not None
    wrapped.unused.to_empty(device="cpu")
    wrapped(x())
    assert wrapped.fallback_reason is None
    for policy in ("FALLBACK_DISABLE", "FALLBACK_UNSUPPORTED_DATA"):
        monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", policy)
        with pytest.raises(UnsupportedDevice, match=where):
            ORTModule(on_two_devices())
    many = torch.nn.Sequential(*(torch.nn.Linear(1, 1, device="meta") for _ in range(4)), torch.nn.Linear(1, 1))
    with pytest.raises(UnsupportedDevice, match="'1.weight' and 5 more on meta; '4.weight', '4.bias' on cpu"):
        ORTModule(many)


@dataclasses.dataclass
class Settings:
    scale: float = 2.0
    thing: object = None


class Scaled(torch.nn.Module):
    def forward(self, a, settings):
        return (a if a is not None else 1.0) * settings.scale


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((None, Settings(thing=Thing())), "argument `settings_thing` is a .*Thing, which is neither a tensor"),
        ((x(), Settings(thing=Thing())), "argument `settings_thing` is a .*Thing, which is neither a tensor"),
        (
            (x().to_sparse().requires_grad_(), Settings()),
            "argument `a` is a tensor of layout torch.sparse_coo, expected a dense one",
        ),
        ((x().to("meta"), Settings()), "argument `a` is a tensor on meta, expected one on the CPU"),
        ((x().to(torch.complex32), Settings()), "argument `a` is a tensor of dtype torch.complex32"),
    ],
)
def test_an_argument_that_no_graph_takes_is_named(arguments, reason):
    wrapped = ORTModule(Scaled())
    with pytest.warns(FallbackWarning, match=reason):
        wrapped(*arguments)


def test_an_output_of_a_class_that_nobody_knows_is_data():
    wrapped = ORTModule(Of(unsupported_output))
    with pytest.warns(FallbackWarning, match="an output holds a .*Thing"):
        assert isinstance(wrapped(x())[1], Thing)


def test_names_are_joined_by_bars():
    both = FallbackPolicy.FALLBACK_UNSUPPORTED_DATA | FallbackPolicy.FALLBACK_FORCE_TORCH_FORWARD
    assert parse_policy("FALLBACK_UNSUPPORTED_DATA|FALLBACK_FORCE_TORCH_FORWARD") == both
    assert parse_policy("") == sum(FallbackPolicy[name] for name in KINDS)
    assert [int(policy) for policy in FallbackPolicy] == [1, 2, 4, 8, 16, 32, 64, 128]
    with pytest.raises(InvalidArgument, match="'FALLBACK_DATA'.*FALLBACK_UNSUPPORTED_DATA"):
        parse_policy("FALLBACK_DISABLE|FALLBACK_DATA")


def test_an_old_pytorch_is_an_initialization_that_failed(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "1.8.1")
    with pytest.raises(fallback.ORTModuleInitException, match="needs PyTorch 2.10 or newer, found 1.8.1"):
        ORTModule(torch.nn.Linear(4, 4))
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_BAD_INITIALIZATION")
    wrapped = ORTModule(torch.nn.Linear(4, 4))
    with pytest.warns(FallbackWarning, match="1.8.1"):
        wrapped(x()).sum().backward()
    assert wrapped.weight.grad is not None


# ---- what a failure leaves behind


class Counting(torch.nn.Module):
    """Random numbers, statistics and parameters: all that a failure could disturb."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
        )

    def forward(self, a):
        return self.net(a).sum()


class FailingForward(Session):
    def forward(self, *arguments):
        raise InternalError("injected")


def _raise(error):
    def raising(*_, **__):
        raise error

    return raising


def _export_then_raise(*args, export=torch.export.export, **kwargs):
    export(*args, **kwargs)
    torch.rand(3)
    raise RuntimeError("injected")


FAILURES = {
    "before the export": (torch.export, "export", _raise(RuntimeError("injected"))),
    "after the export": (torch.export, "export", _export_then_raise),
    "importing": (lowtide.capture, "import_program", _raise(InternalError("injected"))),
    "planning": (lowtide.store.plans, "Session", _raise(InternalError("injected"))),
    "running": (lowtide.store.plans, "Session", FailingForward),
}
OURS = ("importing", "planning", "running")


def state_of(module):
    tensors = [*module.parameters(), *module.buffers()]
    gradients = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
    return [tensor.detach().clone() for tensor in tensors], gradients, torch.get_rng_state()


def same(first, second):
    return all(
        (one is None and other is None) or torch.equal(one, other)
        for left, right in zip(first, second, strict=True)
        for one, other in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("place", FAILURES)
def test_a_failure_leaves_the_module_to_pytorch_untouched(place, monkeypatch):
    monkeypatch.setenv("LOWTIDE_RAISE_BUGS", "0")
    eager = Counting()
    module = copy.deepcopy(eager)
    wrapped = ORTModule(module)
    for each in (eager, module):
        torch.manual_seed(1)
        each(x(5, 4)).backward()  # gradients to keep
    before = state_of(module)
    monkeypatch.setattr(*FAILURES[place])
    monkeypatch.setattr(wrapped._training_manager._fallback, "policy", FallbackPolicy.FALLBACK_DISABLE)
    with pytest.raises(InternalError if place in OURS else UnsupportedError, match="injected"):
        wrapped(x(5, 4))
    assert same(state_of(module), before)

    wrapped = ORTModule(module)
    with pytest.warns(FallbackWarning, match="injected") as caught:
        loss = wrapped(x(5, 4))
    torch.set_rng_state(before[2])
    expected = eager(x(5, 4))
    assert torch.equal(loss, expected)
    loss.backward()
    expected.backward()
    assert same(state_of(module), state_of(eager))
    wrapped(x(5, 4)).backward()
    assert len([each for each in caught if each.category is FallbackWarning]) == 1

    monkeypatch.undo()
    fresh = ORTModule(module)
    fresh(x(5, 4)).backward()
    assert fresh.fallback_reason is None


def test_what_failed_in_a_step_is_not_tried_again(monkeypatch):
    calls = []

    class Failing(Session):
        def forward(self, *arguments):
            calls.append(1)
            raise InternalError("injected")

    monkeypatch.setenv("LOWTIDE_RAISE_BUGS", "0")
    monkeypatch.setattr(lowtide.store.plans, "Session", Failing)
    wrapped = ORTModule(Counting())
    with pytest.warns(FallbackWarning, match="injected"):
        for _ in range(3):
            wrapped(x(5, 4))
    assert len(calls) == 1 and "injected" in wrapped.fallback_reason
    monkeypatch.setenv("ORTMODULE_FALLBACK_RETRY", "true")
    wrapped = ORTModule(Counting())
    with pytest.warns(FallbackWarning, match="injected"):
        for _ in range(3):
            wrapped(x(5, 4))
    assert len(calls) == 4


def test_errors_of_a_step_are_raised_unless_pytorch_is_forced(monkeypatch):
    wrapped = ORTModule(Of(lambda m, i: torch.nn.functional.embedding(i, m.l.weight)))
    wrapped(torch.tensor([0, 3]))
    with pytest.raises((EngineError, IndexError)):
        wrapped(torch.tensor([0, 400]))
    assert wrapped.fallback_reason is None
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_FORCE_TORCH_FORWARD")
    wrapped = ORTModule(Of(lambda m, i: torch.nn.functional.embedding(i, m.l.weight)))
    wrapped(torch.tensor([0, 3]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(IndexError):  # PyTorch's own
            wrapped(torch.tensor([0, 400]))


def test_what_the_users_code_raises_is_the_users_alone():
    def forward(m, a):
        raise ValueError("mine")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="mine") as raised:
            ORTModule(Of(forward))(x())
    assert raised.value.__cause__ is None and raised.value.__context__ is None


# ---- how often


def exports_in(steps, wrapped, exports):
    exports.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(steps):
            wrapped(x())
    return len(exports)


def test_retry_exports_at_every_call(monkeypatch):
    exports, export = [], torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda *args, **kwargs: exports.append(1) or export(*args, **kwargs))

    def forward(m, a):
        return m.l(a) if a.sum() > -1e9 else a

    once = exports_in(1, ORTModule(Of(forward)), exports)
    assert once > 0
    assert exports_in(3, ORTModule(Of(forward)), exports) == once
    monkeypatch.setenv("ORTMODULE_FALLBACK_RETRY", "true")
    assert exports_in(2, ORTModule(Of(forward)), exports) == 2 * once


def test_a_thousand_steps_in_pytorch_make_one_line(capfd, caplog):
    wrapped = ORTModule(Of(lambda m, a: m.l(a).sum() if a.sum() > -1e9 else a), DebugOptions(LogLevel.WARNING))
    generator = torch.Generator().manual_seed(2)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, category, filename, line, *_: print(f"{filename}:{line}: {message}")
        for step in range(1000):
            loss = wrapped(x(int(torch.randint(1, 50, (), generator=generator)), 4))
            if step % 50 == 0:
                loss.backward()
    streams = capfd.readouterr()
    (line,) = (streams.out + streams.err).splitlines()
    assert line.startswith(__file__) and "Of runs in PyTorch, not in lowtide" in line
    assert not [record for record in caplog.records if record.name.startswith("lowtide")]


def test_reasons_that_differ_in_numbers_or_come_without_end_are_few_lines():
    told = fallback.Fallback()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(1000):
            told.warn(torch.nn.Linear(1, 1), UnsupportedError(f"no capture fits sizes {step}"))
        assert len(caught) == 1
        for step in range(1000):
            told.warn(torch.nn.Linear(1, 1), UnsupportedError("because " + "of " * step))
    assert len(caught) < 10 and "no more are shown" in str(caught[-1].message)


def test_errors_only_and_other_ranks_hear_nothing(monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrapped = ORTModule(hooked(), DebugOptions(LogLevel.ERROR))
        wrapped(x())
        assert wrapped.fallback_reason
        monkeypatch.setenv("RANK", "1")
        wrapped = ORTModule(hooked())
        wrapped(x())
        assert wrapped.fallback_reason


def test_info_has_the_traceback(caplog):
    wrapped = ORTModule(Of(lambda m, a: m.l(a) if a.sum() > -1e9 else a), DebugOptions(LogLevel.INFO))
    with pytest.warns(FallbackWarning):
        wrapped(x())
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.levelname == "INFO" and re.search("runs in PyTorch", record.getMessage())
    assert "in guard_bool" in caplog.text and "test_fallback_policies.py" in caplog.text  # down to the innermost frame


def test_pytorchs_backward_can_be_asked_for(monkeypatch):
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_UNSUPPORTED_DATA|FALLBACK_FORCE_TORCH_BACKWARD")
    wrapped = ORTModule(Of(lambda m, a: m.l(a)))
    with pytest.warns(FallbackWarning, match="FALLBACK_FORCE_TORCH_BACKWARD"):
        output = wrapped(x())
    assert type(output.grad_fn).__name__ == "AddmmBackward0"
    with torch.no_grad():
        wrapped(x())
    assert wrapped.fallback_reason is None
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE|FALLBACK_FORCE_TORCH_BACKWARD")
    disabled = ORTModule(Of(lambda m, a: m.l(a)))
    disabled(x()).sum().backward()
    assert disabled.fallback_reason is None
