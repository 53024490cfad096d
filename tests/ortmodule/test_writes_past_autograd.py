"""Writes that autograd does not see (under no_grad, through .data), whose gradients go on as if there were none, and
writes of the whole that it does see, behind which gradients are zeros."""

import copy

import pytest
import torch
from modules import Of, assert_same, assert_same_state, step

from lowtide.compile_backend import lowtide
from lowtide.ortmodule import ORTModule


def _columns(m, x):
    h = m.l(x)
    with torch.no_grad():
        h[:, 0] = 0
    return h.tanh()


def _whole(m, x):
    h = m.l(x)
    with torch.no_grad():
        h.mul_(2)
    return h.tanh()


def _and_read_within(m, x):
    h = m.l(x)
    with torch.no_grad():
        h.clamp_(-0.5, 0.5)
        mean = h.mean()
    return h * mean


def _through_a_view(m, x):
    h = m.l(x)
    view = h[:, 1:]
    with torch.no_grad():
        view.mul_(3)
    return h.sin() + view.sum()


def _under_a_view(m, x):
    h = m.l(x)
    view = h[:, 1:]
    with torch.no_grad():
        h.mul_(3)
    return h.sin() + view.sum()


def _masked_scores(m, x):
    scores = torch.bmm(m.l(x)[:, None], x[..., None]) + torch.arange(4.0)
    scores.data.masked_fill_(x[:, None] > 0.3, -torch.inf)
    return torch.softmax(scores, -1)


def _written_by_what_has_a_gradient(m, x):
    h = m.l(x)
    h.data.copy_(m.l(x * 2))
    return h * 3


def _buffer_with_a_history(m, x):
    h = torch.zeros_like(x)
    h[:, 0] = m.l(x)[:, 0]
    with torch.no_grad():
        h[:, 1] = 5
        h[:, 0] *= 2
    return h.sin()


def _zeroed(m, x):
    h = m.l(x)
    h.zero_()
    return h + x


def _copied_over(m, x):
    h = m.l(x)
    h.copy_(x * 2)
    return h * 3


def _assigned_as_a_whole(m, x):
    h = m.l(x)
    h[:] = x * 2
    return h * 3


def _filled_through_a_view(m, x):
    h = m.l(x)
    h.view(-1).fill_(0.3)
    return h * x


_FUNCTIONS = (
    _columns,
    _whole,
    _and_read_within,
    _through_a_view,
    _under_a_view,
    _masked_scores,
    _written_by_what_has_a_gradient,
    _buffer_with_a_history,
    _zeroed,
    _copied_over,
    _assigned_as_a_whole,
    _filled_through_a_view,
)


@pytest.mark.parametrize("function", _FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("door", ["ortmodule", "compile"])
def test_gradients_are_those_of_eager(function, door):
    torch.manual_seed(0)
    eager = Of(function).double()
    module = copy.deepcopy(eager)
    ours = ORTModule(module) if door == "ortmodule" else torch.compile(module, backend=lowtide)
    for rows in (3, 5):
        x = torch.randn(rows, 4, dtype=torch.float64, requires_grad=True)
        (found, of_inputs, _), (expected, inputs, _) = step(ours, (x,)), step(eager, (x,))
        torch.testing.assert_close([*found, of_inputs[0]], [*expected, inputs[0]])
        assert_same_state(module, eager)
        assert door == "compile" or ours.fallback_reason is None


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: (h := m.l(x).sigmoid(), h.data.mul_(2))[0] * 3,
        lambda m, x: (h := m.l(x), h.square(), h.data.mul_(2))[1] + h,
    ],
)
def test_what_backward_reads_is_not_written_through_data(forward):
    module = Of(forward).double()
    ours, eager = ORTModule(module), copy.deepcopy(module)
    x = torch.randn(3, 4, dtype=torch.float64)
    assert_same(step(ours, (x,)), step(eager, (x,)))
    assert ours.fallback_reason is not None
