"""Calls that return their argument or a view of it, which their schemas or names do not tell, beside writes: what is
written through one of the two shows in the other, as in eager."""

import copy

import pytest
import torch
import torch.nn.functional as F
from modules import Of, assert_same, step

from lowtide.compile_backend import lowtide
from lowtide.ortmodule import ORTModule

# x: (rows, 4)
VIEWS = {
    "type_as": lambda x: x.type_as(x),
    "atleast_1d": torch.atleast_1d,
    "atleast_3d": torch.atleast_3d,
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, x)[0],
    "broadcast_to": lambda x: x.broadcast_to(x.shape),
    "dropout in eval": lambda x: F.dropout(x, 0.5, False),
    "dropout1d in eval": lambda x: F.dropout1d(x, 0.5, False),
    "alpha_dropout of none": lambda x: F.alpha_dropout(x, 0.0, True),
    "resolve_conj": torch.resolve_conj,
    "sum_to_size": lambda x: x.sum_to_size(x.shape),
    "mH": lambda x: x.mH,
    "hsplit": lambda x: x.hsplit(2)[1],
    "einsum": lambda x: torch.einsum("ij->ji", x),
    "view of a dtype": lambda x: x.view(torch.int64).view(torch.float64),
}
READ_ONLY = ("broadcast_to",)  # the lowering derives it again, but knows no way back


def _write_view(view):
    def forward(m, x):
        h = x * 2
        y = view(h)
        y += 1
        return m.l(h), y * 1

    return forward


def _write_source(view):
    def forward(m, x):
        h = m.l(x)
        y = view(h)
        with torch.no_grad():
            h.mul_(2)
        return h * 1, y.sin()

    return forward


def _write_argument(view):
    def forward(m, x):
        y = view(x)
        y += 1
        return m.l(x), y * 1

    return forward


CASES = {"view": _write_view, "source": _write_source, "argument": _write_argument}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", VIEWS)
def test_writes_show_on_both_sides(name, case):
    torch.manual_seed(0)
    eager = Of(CASES[case](VIEWS[name])).double()
    ours = ORTModule(copy.deepcopy(eager))
    for rows in (3, 4, 2):
        given = torch.randn(rows, 4, dtype=torch.float64)
        assert_same(step(ours, (given,)), step(eager, (given,)))
        assert ours.fallback_reason is None or name in READ_ONLY, ours.fallback_reason
        if case == "argument":
            mine, theirs = given.clone(), given.clone()
            torch.testing.assert_close(ours(mine), eager(theirs))
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("name", ["type_as", "mH", "einsum"])
def test_through_torch_compile(name):
    torch.manual_seed(0)
    eager = Of(_write_view(VIEWS[name])).double()
    ours = copy.deepcopy(eager)
    ours.compile(backend=lowtide)
    for rows in (3, 4):
        given = torch.randn(rows, 4, dtype=torch.float64)
        assert_same(step(ours, (given,)), step(eager, (given,)))


def test_what_pytorch_has_no_other_words_for_runs_in_pytorch():
    torch.manual_seed(0)
    eager = Of(_write_view(lambda x: x.unsafe_chunk(2, 1)[1])).double()
    ours = ORTModule(copy.deepcopy(eager))
    given = torch.randn(3, 4, dtype=torch.float64)
    assert_same(step(ours, (given,)), step(eager, (given,)))
    assert "shares with its argument" in ours.fallback_reason
