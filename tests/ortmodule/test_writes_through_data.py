"""`tensor.data` written in forward: autograd takes the tensor for unchanged."""

import pytest
import torch

from lowtide.compile_backend import lowtide
from lowtide.ortmodule import ORTModule


def assign(scratch, value, place):
    """As torchdiffeq's Runge-Kutta steps fill their stages, past autograd."""
    scratch.data[..., place] = value


class Running(torch.nn.Module):
    """A buffer that gradients need, written through `.data` or in place."""

    def __init__(self, write):
        super().__init__()
        self.layer, self.write = torch.nn.Linear(3, 3), write
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        with torch.no_grad():
            self.write(self.seen, x.detach().mean(0))
        y = self.layer(x)
        return (y * self.scale * self.seen).sum()


def test_what_autograd_has_saved_counts_as_unchanged():
    compiled = torch.compile(assign, backend=lowtide)
    weight = torch.ones(4, dtype=torch.float64, requires_grad=True)
    stages, value = torch.zeros(2, 3, 4, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    for place in range(4):
        loss = (stages[..., : place + 1] * weight[: place + 1]).sum()
        compiled(stages, value, place)
        assert torch.equal(stages[..., place], value)
        loss.backward()
    assert stages._version == 0
    assert torch.allclose(weight.grad, value.sum() * torch.arange(4, 0, -1))


def _by_data(buffer, value):
    buffer.data.add_(value)


def _by_view_of_data(buffer, value):
    buffer.data.view(3, 1)[:, 0] += value


def _set_data(buffer, value):
    buffer.data = buffer + value


def _in_place(buffer, value):
    buffer.add_(value)


def _both(buffer, value):
    buffer.data.add_(value)
    buffer.detach().add_(value)


@pytest.mark.parametrize("write", [_by_data, _by_view_of_data, _set_data, _in_place, _both])
def test_versions_are_eagers(write):
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(Running(write).double())
    eager, model = models
    wrapped, inputs = ORTModule(model), [torch.randn(2, 3, dtype=torch.float64) for _ in range(3)]
    for x in inputs:
        torch.testing.assert_close(wrapped(x), eager(x), rtol=1e-12, atol=1e-12)
        assert torch.equal(model.seen, eager.seen)
        assert (model.seen._version > 0) == (eager.seen._version > 0)
    assert wrapped.fallback_reason is None
