"""Calls that return a view where strides allow it and a copy elsewhere, beside writes: the graph knows what they return
in PyTorch."""

import copy

import pytest
import torch
from modules import Of, assert_same, step

from lowtide.compile_backend import lowtide
from lowtide.ortmodule import ORTModule


def _written_argument(m, x):
    y = x.reshape(-1)
    y += 1
    return m.l(x), y * 1, x * 2


def _contiguous_argument(m, x):
    y = x.contiguous()
    y += 1
    return m.l(x), y * 1, x * 2


def _operand_written(m, x):
    h = x * 2
    y = h.flatten()
    h.mul_(3)
    return m.l(h), y * 1


def _reshaped_transpose(m, x):
    h = m.l(x)
    y = h.t().reshape(-1)
    y += 1
    return h * 2, y * 1


def _transpose_before_write(m, x):
    h = m.l(x)
    y = h.t().reshape(-1)
    h *= 2
    return h * 2, y * 1


def _contiguous_transpose(m, x):
    h = m.l(x)
    y = h.t().contiguous()
    y += 1
    return h * 2, y * 1


def _contiguous_before_write(m, x):
    h = m.l(x)
    y = h.t().contiguous()
    h += 1
    return h * 2, y * 1


def _part(m, x):
    h = m.l(x)
    y = h[:, :2].reshape(-1)
    h *= 2
    return h * 2, y * 1


def _written_within_no_grad(m, x):
    h = x.detach() * 2
    with torch.no_grad():
        y = h.t().reshape(-1)
        h += 1
    return m.l(h) + y.sum(), y * 1


_FUNCTIONS = (
    _written_argument,
    _contiguous_argument,
    _operand_written,
    _reshaped_transpose,
    _transpose_before_write,
    _contiguous_transpose,
    _contiguous_before_write,
    _part,
    _written_within_no_grad,
)


def _inputs():
    """Of other sizes and layouts: in rows, in columns, of one row, whose layout is both."""
    for rows in (3, 3, 5, 1, 2):
        yield torch.randn(rows, 4, dtype=torch.float64)
        yield torch.randn(4, rows, dtype=torch.float64).t()


@pytest.mark.parametrize("function", _FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("door", ["ortmodule", "compile"])
def test_what_is_a_view_is_what_it_is_in_eager(function, door):
    torch.manual_seed(0)
    eager = Of(function).double()
    module = copy.deepcopy(eager)
    ours = ORTModule(module) if door == "ortmodule" else torch.compile(module, backend=lowtide)
    for given in _inputs():
        mine, theirs = given.clone(), given.clone()  # which may write into them
        found, expected = ([*each] for each in (ours(mine), eager(theirs)))
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(mine, theirs)
        for outputs, owner in ((found, module), (expected, eager)):
            owner.zero_grad()
            sum((out * torch.arange(1.0, out.numel() + 1).view(out.shape)).sum() for out in outputs).backward()
        torch.testing.assert_close(*([parameter.grad for parameter in each.parameters()] for each in (module, eager)))
        assert door == "compile" or ours.fallback_reason is None


def test_what_has_gaps_is_no_view():
    torch.manual_seed(0)
    eager = Of(_written_argument).double()
    ours = ORTModule(copy.deepcopy(eager))
    for width in (4, 8):  # of which each second column is taken
        mine, theirs = (torch.ones(3, width, dtype=torch.float64)[:, :: width // 4] for _ in range(2))
        torch.testing.assert_close(ours(mine), eager(theirs))
        torch.testing.assert_close(mine, theirs)


def test_layers_that_write_in_place_before_a_flatten_have_one_graph_for_all_layouts():
    module = Of(lambda m, x: m.l(torch.relu_(x * 2).flatten(1)).relu_()).double()
    ours, eager = ORTModule(module), copy.deepcopy(module)
    for given in (torch.randn(3, 2, 2), torch.randn(2, 2, 3).permute(2, 1, 0), torch.randn(3, 4, 2)[:, ::2]):
        assert_same(step(ours, (given.double(),)), step(eager, (given.double(),)))
    assert ours.transition_counts() == {"in training mode": {"first call": 1}}
