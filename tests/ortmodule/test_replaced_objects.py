"""Objects that forward reads and that are replaced between calls, by others of their class: what it read of them
counts, not which they are. Numbers in classes and in slots are inputs as those in attributes are."""

import copy
import dataclasses
import enum
import types

import pytest
import torch
from modules import assert_same, of, step

from lowtide.ortmodule import ORTModule


class Config:
    def __init__(self, rate=0.5, mode="tanh", inner=None):
        self.rate, self.mode, self.inner = rate, mode, inner


class Slotted:
    __slots__ = ("mode", "rate")

    def __init__(self, rate=0.5, mode="tanh"):
        self.rate, self.mode = rate, mode


@dataclasses.dataclass(frozen=True)
class Frozen:
    rate: float = 0.5
    mode: str = "tanh"


class Singleton:
    def __new__(cls, *_):
        return super().__new__(cls)

    def __init__(self, rate):
        self.rate, self.mode = rate, "tanh"


def namespace(rate=0.5, mode="tanh"):
    return types.SimpleNamespace(rate=rate, mode=mode)


def given(seed=1):
    return torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def train(module, changes):
    """Steps with eager's outputs and gradients in the engine; the transitions. `changes`: of both modules, one before
    each step."""
    eager = copy.deepcopy(module)
    wrapped = ORTModule(module)
    for index, change in enumerate(changes):
        for each in (eager, module):
            change(each)
        assert_same(step(wrapped, [given(index)]), step(eager, [given(index)]), rtol=1e-12, atol=1e-13)
        assert wrapped.fallback_reason is None
    (counts,) = wrapped.transition_counts().values()
    return counts


def by_config(m, a):
    y = m.l(a) * m.config.rate
    return y.tanh() if m.config.mode == "tanh" else y.relu()


MAKERS = pytest.mark.parametrize("make", [Config, Slotted, Frozen, namespace])


@MAKERS
def test_another_object_of_the_same_class(make):
    changes = [lambda m, rate=rate: setattr(m, "config", make(rate)) for rate in (0.5, 0.25, 3.0, 0.5, -1.0)]
    assert train(of(by_config, config=make()), changes) == {"first call": 1, "number": 1}


@MAKERS
def test_the_same_values_again_take_no_export(make):
    changes = [lambda m: setattr(m, "config", make())] * 5
    assert train(of(by_config, config=make()), changes) == {"first call": 1}


@MAKERS
def test_what_forward_read_of_it_is_guarded(make):
    modes = ("tanh", "relu", "tanh", "relu")
    changes = [lambda m, mode=mode: setattr(m, "config", make(0.5, mode)) for mode in modes]
    assert train(of(by_config, config=make()), changes) == {"first call": 1, "attribute": 1}


def test_an_object_in_an_object():
    def change(rate):
        return lambda m: setattr(m, "config", Config(inner=Config(rate)))

    module = of(lambda m, a: m.l(a) * m.config.inner.rate, config=Config(inner=Config()))
    assert train(module, map(change, (0.5, 1.5, 2.5, 3.5))) == {"first call": 1, "number": 1}


class Wider(Config):
    factor = 3.0

    @property
    def rate(self):
        return self.factor * self._rate

    @rate.setter
    def rate(self, value):
        self._rate = value


def test_an_object_of_another_class_is_another_one():
    makers = (Config, Wider, Frozen, Config, namespace)
    counts = train(of(by_config, config=Config()), [lambda m, f=make: setattr(m, "config", f()) for make in makers])
    assert counts == {"first call": 1, "attribute": 3}


def test_one_of_two_that_were_one_object():
    module = of(lambda m, a: m.l(a) * m.config.rate + m.l.config.rate, config=Config())
    module.l.config = module.config
    changes = [
        lambda m: None,
        lambda m: setattr(m, "config", Config(2.0)),
        lambda m: setattr(m.l, "config", Config(3.0)),
        lambda m: setattr(m.config, "rate", 4.0),
        lambda m: setattr(m.l, "config", m.config),
        lambda m: setattr(m.config, "rate", 5.0),
    ]
    train(module, changes)


def test_which_one_it_is_can_be_asked():
    first, second = Config(1.0), Config(1.0)

    def asking(m, a):
        return m.l(a) * (2.0 if m.config is first else 3.0) * m.config.rate

    module = of(asking)
    wrapped = ORTModule(module)
    for config in (first, second, first, second):
        module.config = config
        assert_same(step(wrapped, [given()]), step(module, [given()]), rtol=1e-12, atol=1e-13)


class Mode(enum.Enum):
    TANH, RELU = 1, 2

    @property
    def is_smooth(self):
        return self.name == "TANH"


def test_members_of_enums_are_themselves():
    module = of(lambda m, a: m.l(a).tanh() if m.mode is Mode.TANH and m.mode.is_smooth else m.l(a).relu())
    changes = [lambda m, mode=mode: setattr(m, "mode", mode) for mode in (Mode.TANH, Mode.RELU, Mode.TANH)]
    assert train(module, changes) == {"first call": 1, "attribute": 1}


def test_what_a_class_makes_itself_is_itself():
    changes = [lambda m, rate=rate: setattr(m, "config", Singleton(rate)) for rate in (1.0, 2.0)]
    train(of(by_config, config=Singleton(0.5)), changes)


@pytest.mark.parametrize("read", [vars, dataclasses.asdict, lambda config: config.__dict__])
def test_all_attributes_at_once(read):
    module = of(lambda m, a: m.l(a) * sum(v for v in read(m.config).values() if isinstance(v, float)), config=Frozen())
    train(module, [lambda m, rate=rate: setattr(m, "config", Frozen(rate)) for rate in (0.5, 1.5, 2.5)])


class Base(torch.nn.Module):
    inherited, beta = 1.0, 1.0

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.l = torch.nn.Linear(4, 4)


class Derived(Base):
    beta = 1.0

    def forward(self, a):
        return self.l(a) * self.beta + self.inherited


@pytest.mark.parametrize("cls, name", [(Derived, "beta"), (Base, "inherited")])
def test_a_number_of_a_class(cls, name, monkeypatch):
    module = Derived().double()
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    for index in range(6):
        monkeypatch.setattr(cls, name, 1.0 + index / 4)
        assert_same(step(wrapped, [given(index)]), step(eager, [given(index)]), rtol=1e-12, atol=1e-13)
        assert wrapped.fallback_reason is None
        assert getattr(cls, name) == 1.0 + index / 4 and vars(cls)[name] is getattr(cls, name)
    (counts,) = wrapped.transition_counts().values()
    assert counts == {"first call": 1, "number": 1}
    assert (name in vars(Derived)) == (cls is Derived)


def test_a_second_start_takes_objects_of_any_identity(tmp_path, monkeypatch):
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        module = of(by_config, config=Config())
        wrapped = ORTModule(module)
        for _ in range(3):
            module.config = Config()
            assert_same(step(wrapped, [given()]), step(module, [given()]), rtol=1e-12, atol=1e-13)
        (counts,) = wrapped.transition_counts().values()
        assert counts == {"first call": 1}
