"""What a capture leaves as it was: no tensor of the trace stays in an object of the user's, and wherever a capture
fails, the module and all that its code reaches are the same objects with the same contents."""

import collections
import datetime
import gc
import pkgutil
import random
import sys
import types

import numpy
import pytest
import torch
from modules import Of, x

from lowtide.capture import capture
from lowtide.errors import UnsupportedError
from lowtide.ortmodule import ORTModule

FEATURES = {}
REGISTRY = types.ModuleType("lowtide_test_registry")  # as installed code: what it keeps is not looked for
REGISTRY.kept = []


class FeatureHook:
    """The commonest way to get features."""

    def __init__(self):
        self.features, self.last = [], None

    def __call__(self, module, args, output):
        self.features.append(output)
        self.last = args[0]


class History:
    outputs = []


class Keeper:
    __slots__ = ("kept",)


def of(function, **attributes):
    module = Of(function)
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def with_a_hook(hook):
    module = Of(lambda m, a: m.l(a) * 2)
    module.l.register_forward_hook(hook)
    return module


def around():
    features, last = [], None

    def hook(module, args, output):
        nonlocal last
        features.append(output)
        last = output

    return with_a_hook(hook), lambda: [*features, last]


def with_an_object():
    hook = FeatureHook()
    return with_a_hook(hook), lambda: [*hook.features, hook.last]


def with_a_global():
    FEATURES.clear()
    return with_a_hook(lambda module, args, output: FEATURES.update(l=output)), lambda: list(FEATURES.values())


def with_a_class():
    History.outputs = []
    return with_a_hook(lambda module, args, output: History.outputs.append(output)), lambda: History.outputs


def with_an_attribute():
    def forward(m, a):
        m.l.last = m.l(a)
        return m.l.last

    module = Of(forward)
    return module, lambda: [module.l.last]


def with_slots():
    keeper = Keeper()

    def forward(m, a):
        m.keeper.kept = m.l(a)
        return m.keeper.kept

    return of(forward, keeper=keeper), lambda: [keeper.kept]


def with_a_default():
    kept = collections.deque(maxlen=2)

    def hook(module, args, output, kept=kept):
        kept.append(output)

    return with_a_hook(hook), lambda: list(kept)


def with_nested_containers():
    module = of(
        lambda m, a: m.kept["deep"][0].update(a=m.l(a)) or m.l(a), kept=collections.OrderedDict(deep=[{"a": None}])
    )
    return module, lambda: [module.kept["deep"][0]["a"]]


def with_unknown_code():
    del REGISTRY.kept[:]
    sys.modules["lowtide_test_registry"] = REGISTRY

    def hook(module, args, output):
        sys.modules["lowtide_test_registry"].kept.append(output)

    return with_a_hook(hook), lambda: REGISTRY.kept


class ReadOnly:
    """Of a container that nobody takes anything out of, such as an output of transformers."""

    def refuse(self, *args, **kwargs):
        raise TypeError("read-only")

    __delitem__ = clear = pop = remove = refuse


@pytest.mark.parametrize("base", [dict, collections.OrderedDict, list, set, collections.deque])
def test_read_only_containers_of_unknown_code_keep_nothing_of_a_failed_capture(base):
    kept = type("Kept", (ReadOnly, base), {})()
    sys.modules["lowtide_test_registry"] = REGISTRY
    REGISTRY.kept = kept

    def forward(m, a):
        kept = sys.modules["lowtide_test_registry"].kept
        y = m.l(a)
        if isinstance(kept, dict):
            kept["y"] = y
        else:
            (kept.add if isinstance(kept, set) else kept.append)(y)
        return y if y.sum() > 0 else -y

    try:
        with pytest.raises(UnsupportedError):
            capture(Of(forward), (x(),))
    finally:
        REGISTRY.kept = []
    assert len(kept) == 0


def with_inputs_in_unknown_code():
    del REGISTRY.kept[:]
    sys.modules["lowtide_test_registry"] = REGISTRY

    def forward(m, a):
        sys.modules["lowtide_test_registry"].kept.append(a)
        return m.l(a)

    return Of(forward), lambda: REGISTRY.kept


KEEPERS = (
    *(around, with_an_object, with_a_global, with_a_class, with_an_attribute, with_slots, with_a_default),
    *(with_nested_containers, with_unknown_code, with_inputs_in_unknown_code),
)


# What they keep is an output of the graph.
TAKEN = (with_an_attribute, with_nested_containers, with_a_global, around, with_an_object, with_a_class)


@pytest.mark.parametrize("build", KEEPERS)
def test_what_forward_keeps_is_real(build):
    module, kept = build()
    wrapped = ORTModule(module)
    for _ in range(3):
        output = wrapped(x())
        assert kept() and all(type(tensor) is torch.Tensor for tensor in kept()), kept()
        torch.testing.assert_close(output, module(x()))
        if build in TAKEN:
            assert wrapped.fallback_reason is None
        else:
            assert "forward " in wrapped.fallback_reason


@pytest.mark.parametrize("build", [with_slots, with_unknown_code])
def test_what_is_frozen_keeps_no_tensor_of_the_trace(build):
    """Python does not look for holders among objects that gc.freeze() has put aside."""
    module, kept = build()
    gc.collect()
    gc.freeze()
    wrapped = ORTModule(module)
    wrapped(x())
    assert kept() and all(type(tensor) is torch.Tensor for tensor in kept()), kept()
    assert "forward " in wrapped.fallback_reason


def test_a_custom_function_keeps_no_tensor_of_the_trace():
    kept = []

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            kept.append(a)
            return a * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    wrapped = ORTModule(Of(lambda m, a: Keeps.apply(m.l(a))))
    for step in range(1, 4):
        wrapped(x())
        assert len(kept) == step and all(type(tensor) is torch.Tensor for tensor in kept)
    assert wrapped.fallback_reason is None


def test_modules_that_share_a_list_of_tensors_which_forward_fills():
    """Restoring once compared tensors by !=, which is no answer, and stopped halfway: the modules stayed broken."""
    shared = []

    def fill(m, a):
        m.shared.append(m.l(a))
        return m.shared[-1]

    def drain(m, a):
        return m.l(a) + m.shared.pop()

    first, second = of(fill, shared=shared), of(drain, shared=shared)
    module = Of(lambda m, a: m.second(m.first(a)), first=first, second=second)
    expected = module(x())
    shared.append(torch.ones(3, 4))
    wrapped = ORTModule(module)
    torch.testing.assert_close(wrapped(x()), expected)
    assert len(shared) == 1 and torch.equal(shared[0], torch.ones(3, 4))
    torch.testing.assert_close(module(x()), expected)


# ---------------------------------------------------------------- a capture that fails, at every point of it


class Part:
    def __init__(self):
        self.count, self.seen = 0, []


class Slotted:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0


COUNT = 0
TOTALS = {"calls": 0, "tensors": []}


class Everything(torch.nn.Module):
    """Changes something of each kind between any two steps; stops at the one that `stop_at` says."""

    record = {}

    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.count, self.items, self.part, self.slotted = 0, [torch.ones(2)], Part(), Slotted()
        self.order = collections.OrderedDict(a=1, b=[2])
        self.last = collections.deque([torch.ones(1)], maxlen=2)
        self.flags, self.array = {"one"}, numpy.zeros(3)
        self.draw, self.draws = random.Random(5), numpy.random.default_rng(5)
        self.steps = iter([1, 2])
        self.stop_at = None

    def changes(self, a):
        global COUNT
        yield setattr(self, "count", self.count + 1)
        yield setattr(self, "new", a)
        yield self.items.append(a)
        yield self.items.__setitem__(0, a)
        yield self.order["b"].append(a)
        yield self.order.move_to_end("a")
        yield self.order.pop("b")
        yield self.part.seen.append(a)
        yield setattr(self.part, "count", a)
        yield setattr(self.slotted, "count", a)
        yield self.last.extend([a, a])
        yield self.flags.add("two")
        yield self.array.__setitem__(0, 7)
        yield self.draw.random()
        yield self.draws.random()
        yield random.random()
        yield numpy.random.rand()
        yield TOTALS["tensors"].append(a)
        COUNT += 1
        yield TOTALS.update(calls=a)
        yield self.record.update(a=a)
        yield setattr(self, "mean", a.mean(0))
        yield self._modules.update(other=torch.nn.Tanh())
        yield self._forward_hooks.update({-1: print})
        yield setattr(self.l, "bias", None)
        yield setattr(self, "training", False)
        yield setattr(self, "__class__", Of)

    def forward(self, a):
        for step, _ in enumerate(self.changes(a)):
            a = a + 1
            if step == self.stop_at:
                raise ValueError("stopped")
        return self.l(a)


STEPS = sum(1 for _ in Everything().changes(torch.ones(1)))


def snapshot(thing, seen=None):
    """Everything that can be reached, by identity, with the contents of what is plain."""
    seen = {} if seen is None else seen
    if id(thing) in seen or isinstance(thing, type | types.FunctionType | types.ModuleType | types.BuiltinFunctionType):
        return id(thing)
    seen[id(thing)] = thing
    if isinstance(thing, torch.Tensor):
        return type(thing), id(thing), thing.detach().tolist()
    if isinstance(thing, numpy.ndarray):
        return id(thing), thing.tolist()
    if isinstance(thing, random.Random):
        return id(thing), thing.getstate()
    if isinstance(thing, numpy.random.Generator):
        return id(thing), str(thing.bit_generator.state)
    if isinstance(thing, dict):
        return type(thing), id(thing), [(key, snapshot(value, seen)) for key, value in thing.items()]
    if isinstance(thing, list | tuple | collections.deque | set):
        return type(thing), id(thing), [snapshot(item, seen) for item in thing]
    if hasattr(thing, "__dict__"):
        return type(thing), id(thing), snapshot(vars(thing), seen)
    return thing.count if isinstance(thing, Slotted) else thing


def everything_around(module):
    snapshots = [snapshot(thing) for thing in (module, TOTALS, COUNT, Everything.record)]
    return snapshots, random.getstate(), numpy.random.get_state()[1].tolist()


@pytest.fixture
def globals_as_they_were(monkeypatch):
    monkeypatch.setitem(globals(), "COUNT", 0)
    monkeypatch.setitem(globals(), "TOTALS", {"calls": 0, "tensors": []})
    monkeypatch.setattr(Everything, "record", {})


@pytest.mark.parametrize("step", [*range(STEPS), None])
def test_a_forward_that_stops_anywhere_has_changed_nothing(step, globals_as_they_were):
    module = Everything()
    module.stop_at = step
    before = everything_around(module)
    with pytest.raises(UnsupportedError):
        capture(module, (x(),))
    assert everything_around(module) == before and next(module.steps) == 1


@pytest.mark.parametrize(
    "place",
    [
        *("torch.export.export", "lowtide.guards.Observation.note_changes", "lowtide.guards.Guards.add"),
        *("lowtide.guards.Observation.refuse_leftovers", "lowtide.capture.numbers.difference"),
        *("lowtide.capture.trees.flatten", "lowtide.guards.calls.Calls.__torch_function__"),
    ],
)
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_capture_that_breaks_anywhere_has_changed_nothing(place, error, monkeypatch, globals_as_they_were):
    module = Everything()
    before = everything_around(module)

    def broken(*args, **kwargs):
        raise error("broken")

    owner, _, name = place.rpartition(".")
    with monkeypatch.context() as patch, pytest.raises((UnsupportedError, error)):
        patch.setattr(pkgutil.resolve_name(owner), name, broken)
        capture(module, (x(),))
    assert everything_around(module) == before and next(module.steps) == 1
    assert "__getattribute__" not in vars(torch.nn.Module) and type(torch.random.default_generator) is torch.Generator


class InACycle:
    def __init__(self):
        self.itself = self

    def __del__(self):
        REGISTRY.kept.append(type(torch.ones(1)))


def test_what_finalizers_compute_is_not_traced():
    """DeepSpeed's engine asks in its finalizer whether tensors are pinned, wherever the garbage collector ends it."""

    def forward(m, a):
        InACycle()
        [[] for _ in range(5000)]  # starts the collector
        return m.l(a) * 2

    wrapped = ORTModule(Of(forward))
    REGISTRY.kept.clear()
    wrapped(x(2, 4)).sum().backward()
    assert wrapped.fallback_reason is None
    gc.collect()
    assert set(REGISTRY.kept) == {torch.Tensor}


def test_a_span_of_time_is_what_it_is():
    """Its members are numbers of C's, another object each time that they are read."""
    module = Of(lambda m, a: m.l(a) * m.settings.limit.seconds)
    module.settings = types.SimpleNamespace(limit=datetime.timedelta(seconds=5000, microseconds=5000))
    wrapped = ORTModule(module)
    wrapped(x())
    assert wrapped.fallback_reason is None
