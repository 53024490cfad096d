"""Submodules that torch.export takes whole and Dynamo breaks in, of a module whose forward has no graph: decoders of
detection models, which ask whether numbers are finite, beside a loss that leaves PyTorch."""

import copy

import numpy
import pytest
import torch
from modules import assert_same, step

from lowtide.ortmodule import ORTModule

pytestmark = [pytest.mark.usefixtures("with_pieces"), pytest.mark.filterwarnings("ignore:.*runs in pieces")]
TOLERANCE = {"rtol": 1e-9, "atol": 1e-12}


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(4, 4)

    def forward(self, h):
        h = h + self.l(h).tanh()
        if not torch.isfinite(h).all():
            h = h.nan_to_num().clamp(-1, 1)
        return h


class Reading(Layer):
    """Never a graph: a list that goes through NumPy."""

    def forward(self, h):
        h = super().forward(h)
        return h * float(numpy.sign(h.detach().numpy()).max())


class Decoder(torch.nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, h):
        for layer in self.layers:
            h = layer(h)
        return {"last": h, "scale": h.detach().amax()}


class Net(torch.nn.Module):
    def __init__(self, decoder):
        super().__init__()
        self.up, self.decoder, self.down = torch.nn.Linear(4, 4), decoder, torch.nn.Linear(4, 2)

    def forward(self, x):
        found = self.decoder(self.up(x))
        order = torch.from_numpy(numpy.argsort(found["last"].detach().numpy()[:, 0]).copy())
        return self.down(found["last"][order]) * found["scale"]


def pair(*layers, net=Net):
    torch.manual_seed(0)
    module = net(Decoder(*layers)).double()
    return ORTModule(module), copy.deepcopy(module)


def rows(count=3):
    return torch.randn(count, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(count))


def pieces_of(wrapped):
    return wrapped.fallback_reason.partition(" pieces")[0]


def test_submodule_that_dynamo_breaks_in_is_one_graph():
    wrapped, module = pair(Layer(), Layer(), Layer())
    counts = []
    for count in (3, 3, 3, 5, 3):
        x = rows(count).requires_grad_()
        assert_same(step(wrapped, (x,)), step(module, (x,)), **TOLERANCE)
        counts.append(pieces_of(wrapped))
    assert set(counts[2:]) == {"3 of 3"}, counts
    assert "a branch on data" not in wrapped.fallback_reason


def test_submodules_that_have_no_graph_stay_in_pieces():
    wrapped, module = pair(Layer(), Reading(), Layer())
    for _ in range(5):
        x = rows().requires_grad_()
        assert_same(step(wrapped, (x,)), step(module, (x,)), **TOLERANCE)
    ran, found = pieces_of(wrapped).split(" of ")
    assert ran == found
    with torch.no_grad():
        torch.testing.assert_close(wrapped(rows()), module(rows()), **TOLERANCE)


def test_other_numbers_than_the_graph_was_made_for():
    wrapped, module = pair(Layer(), Layer())
    for _ in range(3):
        step(wrapped, (rows(),)), step(module, (rows(),))
    infinite = rows()
    infinite[0, 0] = torch.inf
    assert_same(step(wrapped, (infinite,)), step(module, (infinite,)), equal_nan=True, **TOLERANCE)
    for _ in range(2):
        assert_same(step(wrapped, (rows(),)), step(module, (rows(),)), **TOLERANCE)
    assert pieces_of(wrapped) == "3 of 3"


def test_hooks_on_the_submodule_run():
    wrapped, module = pair(Layer(), Layer())
    for net in (wrapped, module):
        net.decoder.register_forward_hook(lambda module, args, output: {**output, "last": output["last"] * 3})
    for _ in range(4):
        assert_same(step(wrapped, (rows(),)), step(module, (rows(),)), **TOLERANCE)


def test_hook_that_comes_later_runs():
    wrapped, module = pair(Layer(), Layer())
    for _ in range(3):
        assert_same(step(wrapped, (rows(),)), step(module, (rows(),)), **TOLERANCE)
    for net in (wrapped, module):
        net.decoder.register_forward_hook(lambda module, args, output: {**output, "last": output["last"] * 3})
    for _ in range(2):
        assert_same(step(wrapped, (rows(),)), step(module, (rows(),)), **TOLERANCE)


class Bent(torch.nn.Module):
    """Without parameters."""

    def forward(self, h):
        h = h.tanh() * h
        if not torch.isfinite(h).all():
            h = h.nan_to_num().clamp(-1, 1)
        return h


class Sloped(Net):
    """Gradients of its gradients run the decoder's forward again, which was the engine's once more, without an end."""

    def forward(self, x):
        h = self.up(x)
        (slope,) = torch.autograd.grad(self.decoder(h)["last"].square().sum(), h, create_graph=True)
        return super().forward(x) + slope.square().sum()


@pytest.mark.filterwarnings("ignore:create_graph=True")
def test_gradients_of_gradients_in_forward_are_through_the_forward_as_it_is():
    wrapped, module = pair(Bent(), Bent(), net=Sloped)
    for count in (3, 3, 5):
        x = rows(count).requires_grad_()
        assert_same(step(wrapped, (x,)), step(module, (x,)), **TOLERANCE)
    assert "pieces in the engine" in wrapped.fallback_reason
