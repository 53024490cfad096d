"""Functions as modules, in the engine beside eager."""

import copy

import torch
from torch import nn

from lowtide.ortmodule import ORTModule


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def leaf(*sizes, seed=0):
    return torch.randn(sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def indices(high, *sizes):
    return torch.randint(0, high, sizes, generator=torch.Generator().manual_seed(7))


def beside_eager(function, *inputs, engine=None):
    """The engine that ran it as eager does, value and gradients, without PyTorch's kernels."""
    engine = engine or ORTModule(Call(function))
    ours, theirs = [copy.deepcopy(inputs) for _ in range(2)]
    for call, arguments in ((engine, ours), (function, theirs)):
        output = call(*arguments)
        output.backward(torch.linspace(0.5, 1.5, output.numel(), dtype=output.dtype).view(output.shape))
        arguments[0].result = output.detach()
    assert engine.fallback_reason is None
    assert "aten::" not in engine._last_agent().session.training_text()
    torch.testing.assert_close(ours[0].result, theirs[0].result, equal_nan=True)
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, torch.Tensor) and one.requires_grad:
            torch.testing.assert_close(one.grad, other.grad, equal_nan=True)
    return engine
