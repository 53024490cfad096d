"""Models of other people's libraries train as in eager, through both doors; requirements-libraries.txt names them."""

import copy

import library_models as models
import pytest
import torch

from lowtide import compile_backend
from lowtide.ortmodule import ORTModule
from lowtide.ortmodule.transitions import TRANSITIONS, Action

STEPS = 20
MODELS = pytest.mark.parametrize("make", models.EXPORTS, ids=lambda make: make.__name__)

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def reset(monkeypatch):
    monkeypatch.setenv("LOWTIDE_PIECES", "1")
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def _to(value, dtype):
    return value.to(dtype) if torch.is_tensor(value) and value.dtype is torch.float64 else value


def train_beside(make, door):
    """The module through a door; its losses are those of a copy in PyTorch."""
    torch.manual_seed(0)
    module, batch_of, loss_of = make()
    dtype = torch.float32 if make in models.SINGLE else torch.float64
    module = module.to(dtype).train()
    eager = copy.deepcopy(module)
    wrapped = door(module)
    optimizers = [
        torch.optim.SGD([p for p in trained.parameters() if p.requires_grad], lr=0.01) for trained in (module, eager)
    ]
    for index in range(STEPS):
        batch = {name: _to(value, dtype) for name, value in batch_of(index).items()}
        losses = [loss_of(trained(**copy.copy(batch))) for trained in (wrapped, eager)]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found, expected = (loss.item() for loss in losses)
        tolerance = 1e-4 if make in models.SINGLE else 1e-6 if make in models.IN_FP32 else 1e-8
        assert found == pytest.approx(expected, rel=tolerance, abs=0), f"step {index}"
    return wrapped


@MODELS
def test_losses_of_ortmodule_are_eagers(make):
    wrapped = train_beside(make, ORTModule)
    assert wrapped.fallback_reason is None
    (counts,) = wrapped.transition_counts().values()
    exports = sum(count for trigger, count in counts.items() if TRANSITIONS[trigger].action is Action.EXPORT)
    assert exports == models.EXPORTS[make], counts


@MODELS
def test_losses_of_torch_compile_are_eagers(make, pieces):
    train_beside(make, lambda module: torch.compile(module, backend=compile_backend.lowtide))
    assert pieces
    assert {piece.fallback_reason for piece in pieces} == {None}
