"""Tensors that functools' caches keep: those of a trace are taken out again, with whatever is around them."""

import functools
import weakref

import pytest
import torch
from modules import Of, assert_same, step

from lowtide.guards import leftovers
from lowtide.ortmodule import ORTModule


class Record:
    def __init__(self, rows):
        self.table = rows


def _rows():
    return torch.arange(4, dtype=torch.float64)


MADE = {
    "a tensor": (_rows, lambda found: found),
    "a pair": (lambda: (_rows(), _rows() + 1), lambda found: found[0] * found[1]),
    "an object": (lambda: Record(_rows()), lambda found: found.table),
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("cache", [functools.cache, functools.lru_cache(8)], ids=["cache", "lru_cache"])
def test_no_tensor_of_a_trace_stays_in_a_cache(cache, made):
    """They stayed, but for a tensor itself in an unbounded cache: every later call in PyTorch read the trace's."""
    make, read = MADE[made]
    cached = cache(make)
    module = Of(lambda m, x: m.l(x) * read(cached())).double()
    wrapped = ORTModule(module)
    for rows in (3, 3, 5):
        x = torch.randn(rows, 4).double()
        assert_same(step(wrapped, (x,)), step(module, (x,)))
    assert type(read(cached())) is torch.Tensor


def test_a_proxy_of_what_is_gone_is_asked_nothing():
    class Gone:
        pass

    one = Gone()
    proxy, held = weakref.proxy(one), [torch.ones(1)]
    del one
    assert leftovers.let_go(lambda: [weakref.ref(each) for each in held]) == "a list"
    assert held == [] and type(proxy) is weakref.ProxyType
