"""Graphs whose forward puts tensors into containers, read from disk in a second start."""

import json

import pytest
import torch
from cached import graphs
from modules import of

from lowtide.ortmodule import ORTModule
from lowtide.store import captures


class Recorder:
    def __init__(self):
        self.last, self.named = None, {}


def attribute(m, a):
    m.recorder.last = m.l(a).tanh()
    return m.recorder.last * 2


def entry(m, a):
    m.recorder.named["an h"] = h = m.l(a).tanh()
    return h * 2


def cleared(m, a):
    m.acts.clear()
    for _ in range(2):
        a = m.l(a)
        m.acts.append(a)
    return a


def in_a_list(m, a):
    m.recorders[1].last = h = m.l(a)
    return h * 2


FUNCTIONS = pytest.mark.parametrize("function", [attribute, entry, cleared, in_a_list])


def built(function):
    return of(function, recorder=Recorder(), acts=[], recorders=[Recorder(), Recorder()])


def collected(m):
    found = [m.recorder.last, *m.recorder.named.values(), *m.acts, m.recorders[1].last]
    return [each for each in found if each is not None]


@FUNCTIONS
def test_a_second_start_collects_the_same(function, folder, exports):
    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for start in range(2):
        module, eager = built(function), built(function)
        before, wrapped = len(exports), ORTModule(module)
        for _ in range(3):
            torch.testing.assert_close(wrapped(x), eager(x))
            assert len(collected(module)) == len(collected(eager)) > 0
            torch.testing.assert_close(collected(module), collected(eager))
            sum(each.square().sum() for each in collected(module)).backward()
        assert wrapped.fallback_reason is None
        assert start == 0 or len(exports) == before


@pytest.mark.parametrize(
    "text",
    ["l.weight", "_buffers['x']", "l.__class__.x", "os:environ", "recorder", "nowhere.x", "l._forward_hooks[0]"],
)
def test_a_file_that_names_another_place_is_ignored(text, folder, exports, monkeypatch):
    x = torch.randn(3, 4, dtype=torch.float64)
    ORTModule(built(attribute))(x)
    assert len(graphs(folder)) == 1
    read = captures.files.read

    def other(path, magic):
        if magic != captures._MAGIC:
            return read(path, magic)
        told = json.loads(read(path, magic))
        told["writes"] = [[None, text, False]]
        return json.dumps(told).encode()

    monkeypatch.setattr(captures.files, "read", other)
    module, before = built(attribute), len(exports)
    wrapped = ORTModule(module)
    torch.testing.assert_close(wrapped(x), module(x))
    assert len(exports) > before and wrapped.fallback_reason is None
