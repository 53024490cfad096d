"""`out=` with a tensor of another size, which PyTorch then gives it."""

import copy

import pytest
import torch
from modules import of, x

from lowtide.ortmodule import ORTModule


def made(m, a):
    sums = torch.empty(0, dtype=a.dtype)
    torch.add(a, 1, out=sums)
    return m.l(sums) * sums.shape[0]


def product(m, a):
    products = a.new_empty(0)
    torch.mm(a, a.t(), out=products)
    return m.l(a) + products.sum()


def buffer(m, a):
    torch.add(a, 1, out=m.sums)
    return m.l(m.sums)


def run(function):
    module = of(function)
    module.register_buffer("sums", torch.empty(0, dtype=torch.float64))
    wrapped = ORTModule(copy.deepcopy(module))
    for rows in (3, 5):
        given = x(rows, 4).double()
        torch.testing.assert_close(wrapped(given), module(given))
        torch.testing.assert_close(wrapped.sums, module.sums)
    return wrapped


@pytest.mark.parametrize("function", [made, product])
def test_one_graph_has_it(function):
    wrapped = run(function)
    assert wrapped.fallback_reason is None
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1}}


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_memory_that_others_know_is_pytorchs():
    assert "forward changes the size of a tensor by out=" in run(buffer).fallback_reason
