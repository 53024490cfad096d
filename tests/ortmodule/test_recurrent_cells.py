"""One step of a recurrent layer as ops of the engine's own, with PyTorch's results, called again and again."""

import copy

import pytest
import torch

from lowtide.ortmodule import ORTModule

CELLS = {
    "gru": torch.nn.GRUCell,
    "lstm": torch.nn.LSTMCell,
    "tanh": torch.nn.RNNCell,
    "relu": lambda *sizes, **settings: torch.nn.RNNCell(*sizes, nonlinearity="relu", **settings),
}


def unroll(cell, x, state):
    """Gradients of all that a step of backward through five calls reaches."""
    cell.zero_grad()
    x, first = x.clone().requires_grad_(), state.clone().requires_grad_()
    state = (first, first * 0.5) if isinstance(getattr(cell, "module", cell), torch.nn.LSTMCell) else first
    for row in x:
        state = cell(row, state)
    parts = state if isinstance(state, tuple) else (state,)
    sum((part * (index + 1)).square().sum() for index, part in enumerate(parts)).backward()
    return [*parts, x.grad, first.grad, *(p.grad.clone() for p in cell.parameters())]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", CELLS)
def test_cells_are_native(name, bias):
    torch.manual_seed(0)
    cell = CELLS[name](3, 4, bias=bias).double()
    wrapped = ORTModule(copy.deepcopy(cell))
    for rows in (2, 5, 1):
        x, state = torch.randn(5, rows, 3, dtype=torch.float64), torch.randn(rows, 4, dtype=torch.float64)
        torch.testing.assert_close(unroll(wrapped, x, state), unroll(cell, x, state), rtol=1e-11, atol=1e-12)
        assert wrapped.fallback_reason is None
    assert "aten::" not in wrapped._training_manager.last_agent.session.lowered_text()


def test_a_cell_without_a_batch_and_without_a_state():
    torch.manual_seed(0)
    cell = torch.nn.LSTMCell(3, 4).double()
    wrapped = ORTModule(copy.deepcopy(cell))
    for x in (torch.randn(3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)):
        torch.testing.assert_close(wrapped(x), cell(x))
        assert wrapped.fallback_reason is None


def test_a_cell_in_autocast_computes_as_pytorchs():
    torch.manual_seed(0)
    cell = torch.nn.GRUCell(3, 4)
    wrapped, x = ORTModule(copy.deepcopy(cell)), torch.randn(2, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(wrapped(x), cell(x))
    assert wrapped.fallback_reason is None
