"""Python state that forward reads or changes: a graph would hold it as it was, or do it once and never again. Whatever
the habit, each call gives what PyTorch gives: from another graph, or from PyTorch with the reason."""

import collections
import functools
import itertools
import random
import types

import habits
import numpy
import pytest
import torch
from modules import Of, x

from lowtide.ortmodule import ORTModule

SCALE = 2.0
WEIGHTS = [1.0, 2.0]
ARRAY = numpy.array([1.0, 2.0])
FUNCTIONS = {"act": torch.tanh}
NAMESPACE = types.SimpleNamespace(scale=2.0)
COUNT = 0
TENSOR = torch.ones(4)


class Settings:
    scale = 2.0


class Slots:
    __slots__ = ("scale",)

    def __init__(self):
        self.scale = 2.0


class Schedule:
    def __init__(self):
        self.scale, self.unread = 2.0, 0

    @property
    def doubled(self):
        return 2 * self.scale

    def value(self):
        return self.scale


def local_helper():
    return SCALE


def by_default(a, weights=WEIGHTS):
    return a * weights[0]


def times(schedule, a):
    return a * schedule.scale


def around():
    """(a function with a variable around it, what sets the variable)."""
    scale = 2.0

    def function(m, a):
        return m.l(a) * scale

    def change(value):
        nonlocal scale
        scale = value

    return function, change


CLOSURE, CHANGE_CLOSURE = around()


def of(function, **attributes):
    module = Of(function)
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def set_global(name, value):
    return lambda m, monkeypatch: monkeypatch.setitem(globals(), name, value)


def change_element(container, index):
    container[index] = 5.0


@pytest.fixture(autouse=True)
def the_same_elements_each_time():
    yield
    WEIGHTS[:], ARRAY[:] = [1.0, 2.0], [1.0, 2.0]


# What forward reads: (module, how it changes between two calls)
READ = {
    "a global": (lambda: of(lambda m, a: m.l(a) * SCALE), set_global("SCALE", 3.0)),
    "a global of a helper that computes nothing": (
        lambda: of(lambda m, a: m.l(a) * local_helper()),
        set_global("SCALE", 3.0),
    ),
    "a global of another file": (
        lambda: of(lambda m, a: m.l(a) * habits.SCALE),
        lambda m, monkeypatch: monkeypatch.setattr(habits, "SCALE", 3.0),
    ),
    "a global of a function of another file": (
        lambda: of(lambda m, a: habits.scaled(m.l(a)) * habits.factor()),
        lambda m, monkeypatch: monkeypatch.setattr(habits, "SCALE", 3.0),
    ),
    "a global function": (
        lambda: of(lambda m, a: m.l(a) * local_helper()),
        set_global("local_helper", lambda: 5.0),
    ),
    "a function's code": (
        lambda: of(lambda m, a: m.l(a) * local_helper()),
        lambda m, monkeypatch: monkeypatch.setattr(local_helper, "__code__", (lambda: 5.0).__code__),
    ),
    "a global list": (
        lambda: of(lambda m, a: m.l(a) * WEIGHTS[1]),
        lambda m, monkeypatch: change_element(WEIGHTS, 1),
    ),
    "a default": (
        lambda: of(lambda m, a: by_default(m.l(a))),
        lambda m, monkeypatch: change_element(WEIGHTS, 0),
    ),
    "a global dict of functions": (
        lambda: of(lambda m, a: FUNCTIONS["act"](m.l(a))),
        lambda m, monkeypatch: monkeypatch.setitem(FUNCTIONS, "act", torch.sin),
    ),
    "a global namespace": (
        lambda: of(lambda m, a: m.l(a) * NAMESPACE.scale),
        lambda m, monkeypatch: monkeypatch.setattr(NAMESPACE, "scale", 3.0),
    ),
    "a class": (
        lambda: of(lambda m, a: m.l(a) * Settings.scale),
        lambda m, monkeypatch: monkeypatch.setattr(Settings, "scale", 3.0),
    ),
    "a global array": (
        lambda: of(lambda m, a: m.l(a) * float(ARRAY[1])),
        lambda m, monkeypatch: change_element(ARRAY, 1),
    ),
    "a variable around forward": (
        lambda: of(CLOSURE),
        lambda m, monkeypatch: CHANGE_CLOSURE(3.0),
    ),
    "a function of PyTorch's": (
        lambda: of(lambda m, a: torch.nn.functional.relu(m.l(a))),
        lambda m, monkeypatch: monkeypatch.setattr(torch.nn.functional, "relu", torch.sin),
    ),
    "objects in lists and dicts": (
        lambda: of(lambda m, a: m.l(a) * m.config["loss"][0].scale, config={"loss": [Schedule()]}),
        lambda m, monkeypatch: setattr(m.config["loss"][0], "scale", 3.0),
    ),
    "a namespace in a list": (
        lambda: of(lambda m, a: m.l(a) * m.parts[0].scale, parts=[types.SimpleNamespace(scale=2.0)]),
        lambda m, monkeypatch: setattr(m.parts[0], "scale", 3.0),
    ),
    "a class that the module holds": (
        lambda: of(lambda m, a: m.l(a) * m.settings.scale, settings=Settings),
        lambda m, monkeypatch: monkeypatch.setattr(Settings, "scale", 3.0),
    ),
    "a number of the module's class": (
        lambda: Thrice(4, 4),
        lambda m, monkeypatch: monkeypatch.setattr(Thrice, "factor", 5.0),
    ),
    "a list of the module's class": (
        lambda: Thrice(4, 4),
        lambda m, monkeypatch: monkeypatch.setattr(Thrice, "further", [1.0]),
    ),
    "an object with slots": (
        lambda: of(lambda m, a: m.l(a) * m.slots.scale, slots=Slots()),
        lambda m, monkeypatch: setattr(m.slots, "scale", 3.0),
    ),
    "what a property reads": (
        lambda: of(lambda m, a: m.l(a) * m.schedule.doubled, schedule=Schedule()),
        lambda m, monkeypatch: setattr(m.schedule, "scale", 3.0),
    ),
    "what a method reads": (
        lambda: of(lambda m, a: m.l(a) * m.schedule.value(), schedule=Schedule()),
        lambda m, monkeypatch: setattr(m.schedule, "scale", 3.0),
    ),
    "a bound method": (
        lambda: of(lambda m, a: m.l(a) * m.value(), value=Schedule().value),
        lambda m, monkeypatch: setattr(m.value.__self__, "scale", 3.0),
    ),
    "a partial's arguments": (
        lambda: of(lambda m, a: m.act(m.l(a)), act=functools.partial(times, Schedule())),
        lambda m, monkeypatch: setattr(m.act.args[0], "scale", 3.0),
    ),
    "an array that is changed in place": (
        lambda: of(lambda m, a: m.l(a) * torch.from_numpy(m.weights), weights=numpy.ones(4, dtype=numpy.float32)),
        lambda m, monkeypatch: m.weights.__setitem__(1, 7),
    ),
    "a deque": (
        lambda: of(lambda m, a: m.l(a) * m.last[0], last=collections.deque([2.0, 3.0], maxlen=2)),
        lambda m, monkeypatch: m.last.append(4.0),
    ),
    "a set": (
        lambda: of(lambda m, a: m.l(a) if "scale" in m.flags else a, flags={"scale"}),
        lambda m, monkeypatch: m.flags.clear(),
    ),
    "a list without names": (
        lambda: of(lambda m, a: [act(m.l(a)) for act in m.acts][0], acts=[torch.tanh]),
        lambda m, monkeypatch: m.acts.__setitem__(0, torch.sin),
    ),
    "an attribute of a computed name": (
        lambda: of(lambda m, a: m.l(a) * getattr(m, f"scale{a.dim()}"), scale2=2.0),
        lambda m, monkeypatch: setattr(m, "scale2", 3.0),
    ),
    "a method of the module's class": (
        lambda: of(lambda m, a: m.l(a)),
        lambda m, monkeypatch: monkeypatch.setattr(Of, "forward", lambda m, a: m.l(a) * 3),
    ),
    "a method of the module alone": (
        lambda: of(lambda m, a: m.l(a)),
        lambda m, monkeypatch: setattr(m.l, "forward", lambda a: a * 3),
    ),
    "the module's class": (
        lambda: of(lambda m, a: m.l(a)),
        lambda m, monkeypatch: setattr(m.l, "__class__", Thrice),
    ),
    "a module in a list": (
        lambda: of(lambda m, a: m.rest[0](m.l(a)), rest=[torch.nn.LeakyReLU(0.1)]),
        lambda m, monkeypatch: setattr(m.rest[0], "negative_slope", 0.5),
    ),
}


class Thrice(torch.nn.Linear):
    factor, further = 3.0, []

    def forward(self, a):
        return super().forward(a) * self.factor + sum(self.further)


@pytest.mark.parametrize("habit", READ)
def test_what_forward_reads_is_read_again(habit, monkeypatch):
    build, change = READ[habit]
    module = build()
    wrapped = ORTModule(module)
    before = module(x())
    for _ in range(2):
        torch.testing.assert_close(wrapped(x()), before)
        assert wrapped.fallback_reason is None
    change(module, monkeypatch)
    after = module(x())
    assert not torch.equal(before, after), "the change changes nothing"
    for _ in range(2):
        torch.testing.assert_close(wrapped(x()), after)
        assert wrapped.fallback_reason is None
    (counts,) = wrapped.transition_counts().values()
    exports = sum(counts.values()) - 2 * counts.get("constant", 0)  # one with a number that had to be a constant
    assert exports == 2 and counts["first call"] == 1


def test_what_forward_does_not_read_may_change():
    module = of(lambda m, a: m.l(a) * m.config["loss"][0].scale, config={"loss": [Schedule()]}, steps=[1])
    wrapped = ORTModule(module)
    wrapped(x())
    module.config["loss"][0].unread = 1
    module.steps.append(2)
    module.other = 3
    wrapped(x())
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1}}


# ---------------------------------------------------------------- what forward changes, and what is used up


def counting(m, a):
    global COUNT
    COUNT += 1
    return m.l(a) * COUNT


def counting_object(m, a):
    m.schedule.scale += 1
    return m.l(a) * m.schedule.scale


def closing_over_a_count():
    count = 0

    def forward(m, a):
        nonlocal count
        count += 1
        return m.l(a) * count

    return forward


def drawing_from_a_closure(generator):
    return lambda m, a: m.l(a) * generator.random()


def advancing_a_closure(iterator):
    return lambda m, a: m.l(a) * next(iterator)


def in_place(m, a):
    m.array[0] += 1
    return m.l(a) * float(m.array[0])


CHANGED = {
    "a global count": lambda: of(counting),
    "a count around forward": lambda: of(closing_over_a_count()),
    "an object's count": lambda: of(counting_object, schedule=Schedule()),
    "a list": lambda: of(lambda m, a: m.seen.append(1) or m.l(a) * len(m.seen), seen=[]),
    "a dict of the class": lambda: of(lambda m, a: Kept.seen.update({len(Kept.seen): 1}) or m.l(a) * len(Kept.seen)),
    "an array": lambda: of(in_place, array=numpy.zeros(2)),
    "a generator of Python's": lambda: of(lambda m, a: m.l(a) * m.draw.random(), draw=random.Random(3)),
    "a generator of NumPy's": lambda: of(lambda m, a: m.l(a) * m.draw.random(), draw=numpy.random.default_rng(3)),
    "NumPy's old generator": lambda: of(lambda m, a: m.l(a) * m.draw.rand(), draw=numpy.random.RandomState(3)),
    "a generator of PyTorch's": lambda: of(
        lambda m, a: m.l(a) * torch.rand(4, generator=m.draw), draw=torch.Generator().manual_seed(3)
    ),
    "a generator around forward": lambda: of(drawing_from_a_closure(random.Random(3))),
    "an iterator": lambda: of(lambda m, a: m.l(a) * next(m.steps), steps=iter([1, 2, 3, 4, 5, 6, 7])),
    "an endless iterator": lambda: of(lambda m, a: m.l(a) * next(m.steps), steps=itertools.count(1)),
    "an iterator in a dict": lambda: of(lambda m, a: m.l(a) * next(m.parts["n"]), parts={"n": itertools.count(1)}),
    "an iterator around forward": lambda: of(advancing_a_closure(i for i in range(1, 9))),
    "a loop over an iterator": lambda: of(
        lambda m, a: m.l(a) * sum(itertools.islice(m.steps, 2)), steps=itertools.count(1)
    ),
    "torch.manual_seed": lambda: of(lambda m, a: torch.manual_seed(7) and m.l(a) + torch.rand(4)),
    "torch.set_rng_state": lambda: of(lambda m, a: (torch.set_rng_state(STATE), m.l(a) + torch.rand(4))[1]),
    "torch.fork_rng": lambda: of(forked),
}
STATE = torch.get_rng_state()


class Kept:
    seen = {}


def forked(m, a):
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(3)
        return m.l(a) + torch.rand(4)


@pytest.mark.parametrize("habit", CHANGED)
def test_what_forward_changes_runs_in_pytorch_and_the_reason_names_it(habit, monkeypatch):
    monkeypatch.setitem(globals(), "COUNT", 0)
    monkeypatch.setattr(Kept, "seen", {})
    torch.manual_seed(5)
    module = CHANGED[habit]()
    expected = [module(x()) for _ in range(4)]
    after = torch.rand(1)
    monkeypatch.setitem(globals(), "COUNT", 0)
    monkeypatch.setattr(Kept, "seen", {})
    torch.manual_seed(5)
    again = CHANGED[habit]()
    again.load_state_dict(module.state_dict())
    torch.manual_seed(5)
    CHANGED[habit]()  # draws for its weights what the first one drew
    wrapped = ORTModule(again)
    for theirs in expected:
        torch.testing.assert_close(wrapped(x()), theirs)
        assert "forward " in wrapped.fallback_reason, wrapped.fallback_reason
    torch.testing.assert_close(torch.rand(1), after)
    (counts,) = wrapped.transition_counts().values()
    assert counts["refused"] <= 2


def test_a_generator_that_forward_only_holds():
    module = of(lambda m, a: m.l(a) if m.draw is not None else a, draw=random.Random(3))
    wrapped = ORTModule(module)
    torch.testing.assert_close(wrapped(x()), module(x()))
    assert wrapped.fallback_reason is None


# ---------------------------------------------------------------- what is settled once


def settling(m, a):
    if m.mode is None:
        m.mode = "double"
    return m.l(a) * (2 if m.mode == "double" else 1)


def test_a_mode_that_the_first_call_sets_is_set_and_the_graph_is_the_engines():
    module = of(settling, mode=None)
    wrapped = ORTModule(module)
    for _ in range(3):
        torch.testing.assert_close(wrapped(x()), module.l(x()) * 2)
        assert wrapped.fallback_reason is None and module.mode == "double"
    module.mode = "single"
    torch.testing.assert_close(wrapped(x()), module.l(x()))


def first_differs(m, a):
    first, m.first = m.first, False
    return m.l(a) * (3 if first else 1)


def test_a_first_call_that_computes_otherwise_is_pytorchs():
    module = of(first_differs, first=True)
    wrapped = ORTModule(module)
    for factor in (3, 1, 1):
        torch.testing.assert_close(wrapped(x()), module.l(x()) * factor)
        assert (wrapped.fallback_reason is None) == (factor == 1)


def caching(m, a):
    if m.mask is None:
        m.mask = torch.tril(torch.ones(3, 3))
    return m.mask @ m.l(a)


def test_a_tensor_that_the_first_call_makes_is_real():
    module = of(caching, mask=None)
    wrapped = ORTModule(module)
    for _ in range(3):
        torch.testing.assert_close(wrapped(x()), torch.tril(torch.ones(3, 3)) @ module.l(x()))
        assert type(module.mask) is torch.Tensor and wrapped.fallback_reason is None


def doubled_tensor(container, key):
    container[key] = container[key] * 2


@pytest.mark.parametrize(
    "function, change",
    [
        (lambda m, a: m.l(a) * TENSOR, lambda m: doubled_tensor(globals(), "TENSOR")),
        (lambda m, a: m.l(a) * m.parts["scales"][1], lambda m: doubled_tensor(m.parts["scales"], 1)),
        (lambda m, a: m.l(a) * m.schedule.scale, lambda m: doubled_tensor(vars(m.schedule), "scale")),
    ],
    ids=["a global", "in containers", "of an object"],
)
def test_another_tensor_of_the_same_type_is_read_anew(function, change):
    module = of(function, parts={"scales": [None, torch.ones(4)]}, schedule=Schedule())
    module.schedule.scale = torch.ones(4)
    wrapped = ORTModule(module)
    for _ in range(3):
        torch.testing.assert_close(wrapped(x()), module(x()))
        assert wrapped.fallback_reason is None
        change(module)
    (counts,) = wrapped.transition_counts().values()
    assert sum(counts.values()) == 1
