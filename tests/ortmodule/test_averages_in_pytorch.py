"""Averages of batch norms, which autograd does not take for changed, in calls of the engine as in PyTorch's."""

import copy

import pytest
import torch

from lowtide.ortmodule import ORTModule


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8)

    def forward(self, x):
        return self.norm(self.layer(x))


def versions(model):
    return [each._version for each in model.buffers()]


@pytest.mark.parametrize("engine_first", [False, True])
def test_a_call_of_each_before_one_backward(engine_first):
    plain = Model().double()
    module = copy.deepcopy(plain)
    wrapped, before = ORTModule(module), [versions(each) for each in (plain, module)]
    for rows in (4, 5):
        x = torch.randn(rows, 4, dtype=torch.float64)
        calls = (wrapped, module) if engine_first else (module, wrapped)
        for model, both in ((plain, (plain, plain)), (module, calls)):
            model.zero_grad()
            sum(call(x).square().sum() * weight for weight, call in enumerate(both, 1)).backward()
        found = [[*(each.grad for each in model.parameters()), *model.buffers()] for model in (plain, module)]
        torch.testing.assert_close(*found)
        written = [
            [now - then for then, now in zip(was, versions(model), strict=True)]
            for was, model in zip(before, (plain, module), strict=True)
        ]
        assert written[0] == written[1]
    assert wrapped.fallback_reason is None
