"""torch.cond and its kind: regions that PyTorch runs, as one node of a graph. The whole module ran in PyTorch."""

import copy
import warnings

import pytest
import torch
from modules import Of, assert_same_state, step
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from lowtide.compile_backend import lowtide
from lowtide.errors import FallbackWarning
from lowtide.ortmodule import ORTModule


def _branches(m, x):
    h = m.l(x).tanh()
    h = torch.cond(x.sum() > 0, lambda h: m.l(h).sin(), lambda h: h * 2, (h,))
    return m.l(h)


def _loops(m, x):
    start = torch.zeros((), dtype=torch.long)
    _, h = while_loop(lambda i, h: i < x.sum().abs(), lambda i, h: (i + 1, h * 1.5), (start, m.l(x).tanh()))
    return m.l(h)


def _maps(m, x):
    return m.l(map_rows(lambda row: m.l(row).sin(), m.l(x).tanh()))


def _scans(m, x):
    last, rows = scan(lambda c, row: (c * 0.5 + m.l(row), (c + row).sin()), x[0] * 0, m.l(x).tanh())
    return m.l(rows) + last


@pytest.mark.parametrize("function", [_branches, _loops, _maps, _scans], ids=lambda function: function.__name__)
@pytest.mark.parametrize("door", ["ortmodule", "compile"])
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_regions_are_nodes(function, door, monkeypatch):
    monkeypatch.setenv("LOWTIDE_PIECES", "1")
    torch.compiler.reset()
    torch.manual_seed(0)
    eager = Of(function).double()
    module = copy.deepcopy(eager)
    ours = ORTModule(module) if door == "ortmodule" else torch.compile(module, backend=lowtide)
    for rows, sign in ((3, 1), (3, -1), (5, 1), (5, -1)):
        x = sign * torch.rand(rows, 4, dtype=torch.float64)
        with warnings.catch_warnings():
            warnings.filterwarnings("error" if door == "compile" else "ignore", category=FallbackWarning)
            step(ours, (x,))
        step(eager, (x,))
        assert_same_state(module, eager)
        assert door == "compile" or ours.fallback_reason.startswith("1 of 1 pieces in the engine")
    torch.compiler.reset()


def test_dynamo_knows_pytorchs_functions_after_a_capture():
    """It makes its table of them anew after init_process_group, and torch.cond asks for it in a capture."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        step(ORTModule(Of(_branches)), (torch.rand(3, 4),))
    finally:
        torch.distributed.destroy_process_group()
    asked = torch.compile(lambda x: x * 2 if torch.compiler.is_compiling() else x, backend=lowtide, fullgraph=True)
    assert torch.equal(asked(torch.ones(3)), torch.full((3,), 2.0))
