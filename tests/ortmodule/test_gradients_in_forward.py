"""torch.autograd.grad in a forward that has no graph as a whole. It once stood between pieces, where what it
differentiates came out of one of them, and PyTorch said that the two have nothing to do with each other."""

import pytest
import torch
from modules import assert_same_state, pair, same_through_both_doors

pytestmark = pytest.mark.usefixtures("with_pieces")


class Slope(torch.nn.Module):
    """The sum of a monotonic network and of the logarithm of its slope, as flows have it."""

    def __init__(self):
        super().__init__()
        self.into, self.out = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)

    def forward(self, x):
        h = self.into(x)
        if h.sum() > 1e6:
            h = h / 2
        return self.slope(h.tanh())

    def slope(self, h):
        with torch.enable_grad():
            h = h.clone().requires_grad_()
            y = h.sinh() * self.out.weight.square().sum()
        (slope,) = torch.autograd.grad(y, h, torch.ones_like(y), create_graph=True)
        return (y + slope.log()).sum()


class OfAnActivation(Slope):
    def slope(self, h):
        y = self.out(h).sin()
        (slope,) = torch.autograd.grad(y.sum(), h, create_graph=True)
        return (y.sum(dim=1) + slope.square().sum(dim=1)).sum()


class Twice(OfAnActivation):
    def slope(self, h):
        return super().slope(h) + super().slope(h * 2)


@pytest.mark.parametrize("cls", [Slope, OfAnActivation, Twice])
def test_losses_and_gradients_are_eagers(cls):
    ours, theirs = pair(cls)
    for rows in (3, 3, 5):
        x = torch.randn(rows, 4, dtype=torch.float64)
        losses = [module(x) for module in (ours, theirs)]
        torch.testing.assert_close(*losses, rtol=1e-10, atol=1e-12)
        for loss in losses:
            loss.backward()
    assert ours.fallback_reason.startswith(("1 of 2 pieces", "2 of 2 pieces"))
    assert_same_state(ours, theirs)


class Flow(torch.nn.Module):
    """What it differentiates is the middle of one of Dynamo's graphs, whose gradient comes from another."""

    def __init__(self):
        super().__init__()
        self.into, self.monotonic = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        x = self.into(x)
        if x.sum() > 1e6:
            x = x / 2
        h = x.clone().requires_grad_()
        y = torch.nn.functional.linear(h, self.monotonic.weight.abs(), self.monotonic.bias).sinh()
        y = y * x.exp()  # which Dynamo's graphs do not lead to
        (slope,) = torch.autograd.grad(y, h, torch.ones_like(y), create_graph=True)
        return (y + slope.log()).sum()


def test_one_output_of_a_piece_by_another():
    ours = same_through_both_doors(Flow, (3, 3, 5))
    assert "may differentiate one of its outputs by another" in ours.fallback_reason


class Forces(torch.nn.Module):
    """A piece writes into its own argument, the distances, and forces run its forward again: it read what it wrote."""

    def __init__(self):
        super().__init__()
        self.into, self.out = torch.nn.Linear(3, 8), torch.nn.Linear(8, 1)

    def forward(self, places):
        if places.sum() > 1e6:
            places = places / 2
        places = places.detach().requires_grad_()
        apart = places[:-1] - places[1:]
        apart = self.held(apart)
        rows = torch.tensor([0, 1])
        apart[rows] = apart[rows] / apart[rows].norm(dim=1, keepdim=True)
        energy = self.out(self.into(apart).tanh()).sum()
        (slope,) = torch.autograd.grad(energy, places, create_graph=True)
        return energy + slope.square().sum()

    @staticmethod
    @torch.compiler.disable
    def held(distances):
        return distances


def test_forces_through_an_argument_that_a_piece_writes_are_eagers():
    ours, theirs = pair(Forces)
    for rows in (5, 5, 7):
        x = torch.randn(rows, 3, dtype=torch.float64)
        losses = [module(x) for module in (ours, theirs)]
        torch.testing.assert_close(*losses, rtol=1e-10, atol=1e-12)
        for loss in losses:
            loss.backward()
    assert_same_state(ours, theirs)
