"""A loss whose gradients flow to leaves alone that forward makes has a backward that does nothing, as in eager. (It had
none: PyTorch's error, "does not require grad".)"""

import copy

import pytest
import torch

from lowtide.ortmodule import ORTModule


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 8)


class OfInput(Layer):
    def forward(self, x):
        x = x.detach().requires_grad_()
        return (x * 2).sum()


class OfActivation(Layer):
    def forward(self, x):
        hidden = self.fc(x).detach().requires_grad_()
        return hidden.square().sum()


class OfBoth(Layer):
    def forward(self, x):
        x = x.detach().requires_grad_()
        return self.fc(x).square().sum(), x.sum()


class OfViewWithoutGradient(Layer):
    """It asks for a gradient in eager, as the parameter does, and leads to none."""

    def forward(self, x):
        with torch.no_grad():
            turned = self.fc.weight.t()
        return (turned * 2).sum()


class BesideViewWithoutGradient(Layer):
    def forward(self, x):
        with torch.no_grad():
            turned = self.fc.weight.t()
        return self.fc(x).square().sum(), turned.sin().sum()


@pytest.mark.parametrize("make", [OfInput, OfActivation, OfBoth, OfViewWithoutGradient, BesideViewWithoutGradient])
def test_its_backward_does_nothing(make):
    model, found = make().double(), []
    x = torch.randn(4, 8, dtype=torch.float64)
    for each in (model, ORTModule(copy.deepcopy(model))):
        for _ in range(2):
            each.zero_grad()
            losses = result if isinstance(result := each(x), tuple) else (result,)
            assert all(loss.requires_grad and not loss.is_leaf for loss in losses)
            for loss in losses:
                loss.backward()
        found.append([losses, [parameter.grad for parameter in each.parameters()]])
        with torch.no_grad():
            assert not any(loss.requires_grad for loss in torch.utils._pytree.tree_leaves(each(x)))
    torch.testing.assert_close(*found)
    assert each.fallback_reason is None


def test_frozen_parameters_have_no_backward():
    model = ORTModule(OfBoth().double())
    x = torch.randn(4, 8, dtype=torch.float64)
    assert model(x)[0].requires_grad
    model.requires_grad_(False)
    assert model(x)[1].requires_grad
