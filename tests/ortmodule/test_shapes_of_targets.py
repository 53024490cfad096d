"""Predictions in the shape of a target among the arguments: of its free sizes those that must be constants are."""

import copy

import pytest
import torch

from lowtide.ortmodule import ORTModule


class Shaped(torch.nn.Module):
    def __init__(self, shaped):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4, dtype=torch.float64)
        self.shaped = shaped

    def forward(self, x, target):
        return torch.nn.functional.mse_loss(self.shaped(self.layer(x), target), target)


@pytest.mark.parametrize("shaped", [lambda x, y: x.view_as(y), lambda x, y: x.reshape(y.shape)])
def test_a_prediction_takes_the_shape_of_its_target(shaped):
    module = Shaped(shaped)
    wrapped = ORTModule(copy.deepcopy(module))
    for rows in (3, 5, 2):
        x, y = torch.randn(rows, 4, dtype=torch.float64), torch.randn(rows, 2, 2, dtype=torch.float64)
        for model in (module, wrapped):
            model.zero_grad()
            model(x, y).backward()
        torch.testing.assert_close([p.grad for p in wrapped.parameters()], [p.grad for p in module.parameters()])
        assert wrapped.fallback_reason is None
    assert wrapped.transition_counts()["in training mode"] == {"first call": 1}
