"""Inputs whose counts are data, and the check that one graph serves all of them."""

import copy

import torch
from modules import assert_same, step

from lowtide.ortmodule import ORTModule


def rows(chosen, count=6):
    """x of `count` rows, of which the first columns of `chosen` are positive."""
    values = torch.randn(count, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    values[:, 0] = values[:, 0].abs().add(0.1)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(count))
    values[order[chosen:], 0] *= -1
    return values.requires_grad_()


def assert_one_graph(module, calls):
    """One export serves the calls, with PyTorch's outputs and gradients; the wrapped module."""
    wrapped, agents = ORTModule(copy.deepcopy(module)), set()
    for arguments in calls:
        assert_same(step(wrapped, arguments), step(module, arguments), rtol=1e-9, atol=1e-11)
        assert wrapped.fallback_reason is None
        agents.add(wrapped._training_manager.last_agent)
    assert len(agents) == 1
    return wrapped
