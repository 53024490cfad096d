"""Attributes that forward sets to plain values: each call leaves them as eager's does, whichever graph serves it."""

import copy
import time

import pytest
import torch
from cached import graphs
from modules import of, x

from lowtide.ortmodule import ORTModule


class Holder:
    pass


def is_long(a):
    return a.shape[0] > 3


def word(a):
    return "long" if is_long(a) else "short"


def then(m, a, *_):
    return m.l(a)


SET = {
    "a word": lambda m, a: then(m, a, setattr(m, "v", word(a))),
    "a number": lambda m, a: then(m, a, setattr(m, "v", 7 if is_long(a) else 2.5)),
    "a size as a number": lambda m, a: then(m, a, setattr(m, "v", int(a.shape[0]))),
    "a condition": lambda m, a: then(m, a, setattr(m, "v", is_long(a))),
    "a text of a size": lambda m, a: then(m, a, setattr(m, "v", f"{a.shape[0]} rows")),
    "a pair": lambda m, a: then(m, a, setattr(m, "v", (word(a), a.dtype, None))),
    "a dtype and a device": lambda m, a: then(m, a, setattr(m, "v", a.dtype), setattr(m, "w", a.device)),
    "of a child": lambda m, a: then(m, a, setattr(m.l, "v", word(a))),
    "read after": lambda m, a: then(m, a, setattr(m, "v", word(a))) * (2 if m.v == "long" else 3),
    "none or not": lambda m, a: then(m, a, setattr(m, "v", None if is_long(a) else "short")),
}
# What a graph finds as a call has left it, and no call makes again.
LEFT = {
    "a list": lambda m, a: then(m, a, setattr(m, "v", [word(a)])),
    "an entry": lambda m, a: then(m, a, m.d.update(v=word(a))),
    "of an object": lambda m, a: then(m, a, setattr(m.o, "v", word(a))),
    "read before": lambda m, a: then(m, a, setattr(m, "w", m.d["v"]), m.d.update(v=word(a))),
}


def attributes(module):
    found = [(name, vars(each)[name]) for each in (module, module.l) for name in ("v", "w", "d") if name in vars(each)]
    return [*found, vars(module.o)]


def both(function):
    module = of(function, d={"v": "short"}, o=Holder())
    return module, copy.deepcopy(module), ORTModule(module)


def assert_follows(module, eager, wrapped, between=lambda module: None):
    for rows in (3, 5, 3, 3, 6, 3, 5):
        torch.testing.assert_close(wrapped(x(rows, 4).double()), eager(x(rows, 4).double()))
        assert attributes(module) == attributes(eager), rows
        between(module)
        between(eager)


@pytest.mark.parametrize("name", SET)
def test_the_graphs_set_it(name):
    module, eager, wrapped = both(SET[name])
    assert_follows(module, eager, wrapped)
    assert wrapped.fallback_reason is None


@pytest.mark.parametrize("name", LEFT)
def test_graphs_find_it_or_do_not_serve(name):
    assert_follows(*both(LEFT[name]))


@pytest.mark.parametrize("name", ["a word", "a list", "of an object"])
def test_whatever_the_user_sets_between(name):
    def reset(module):
        module.v = module.o.v = None

    assert_follows(*both({**SET, **LEFT}[name]), between=reset)


def test_a_mode_that_forward_sets_once():
    def once(m, a):
        if not m.ready:
            m.v, m.ready = "begun", True
        return m.l(a)

    module, eager, wrapped = both(once)
    module.ready = eager.ready = False
    assert_follows(module, eager, wrapped, between=lambda module: setattr(module, "v", "user's"))
    assert wrapped.fallback_reason is None


def test_the_time_is_no_constant():
    module, _, wrapped = both(lambda m, a: then(m, a, setattr(m, "v", time.perf_counter())))
    seen = [(wrapped(x().double()), module.v)[1] for _ in range(4)]
    assert sorted(set(seen)) == seen


def test_a_second_start_sets_it_too(folder, exports):
    module, eager, _ = both(SET["a dtype and a device"])
    for _ in range(2):
        assert_follows(module, eager, ORTModule(module), between=lambda module: setattr(module, "v", 0))
    assert len(graphs(folder)) == 1
