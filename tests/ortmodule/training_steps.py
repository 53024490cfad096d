"""SGD steps of a module through ORTModule and in PyTorch, side by side."""

import copy

import torch
from modules import assert_same, step, x

from lowtide.ortmodule import ORTModule


def fresh_inputs(*shapes, grad=True):
    """index of a step → inputs of these shapes, new ones at each step."""

    def make(index):
        generator = torch.Generator().manual_seed(index)
        return [torch.randn(*shape, generator=generator).requires_grad_(grad) for shape in shapes]

    return make


def same_training(module, inputs=None, steps=3, in_engine=True, tolerance=None):
    """Losses, gradients and buffers of each step are PyTorch's; returns the ORTModule. Without inputs: one of 3x4."""
    inputs = inputs or fresh_inputs(x().shape)
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    optimizers = [torch.optim.SGD(trained.parameters(), lr=0.01, momentum=0.9) for trained in (eager, wrapped)]
    for index in range(steps):
        args = inputs(index)
        expected, found = step(eager, args), step(wrapped, args)
        assert (wrapped.fallback_reason is None) == in_engine, wrapped.fallback_reason
        assert_same(found, expected, **(tolerance or {"rtol": 1e-4, "atol": 1e-5}))
        for optimizer in optimizers:
            optimizer.step()
    return wrapped
