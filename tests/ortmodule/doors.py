"""Both ways to run a module, and the comparison of training steps with PyTorch's."""

import copy

import torch
from modules import assert_same, step

from lowtide import compile_backend
from lowtide.ortmodule import ORTModule

DOORS = ("ORTModule", "torch.compile")


def through(door, module):
    return ORTModule(module) if door == "ORTModule" else torch.compile(module, backend=compile_backend.lowtide)


def compare(door, module, arguments_of, steps=3):
    """Steps of SGD with eager's outputs, gradients, parameters and buffers; returns the wrapper."""
    eager, inner = copy.deepcopy(module).double(), module.double()
    wrapped = through(door, inner)
    for index in range(steps):
        arguments = [argument.double() for argument in arguments_of(index)]
        outputs, _, _ = step(eager, [argument.clone() for argument in arguments])
        found, _, _ = step(wrapped, [argument.clone() for argument in arguments])
        state = [{name: p.grad for name, p in each.named_parameters()} for each in (inner, eager)]
        assert_same((found, state[0], dict(inner.named_buffers())), (outputs, state[1], dict(eager.named_buffers())))
        with torch.no_grad():
            for mine, other in zip(inner.parameters(), eager.parameters(), strict=True):
                torch.testing.assert_close(mine, other)
                for parameter in (mine, other):
                    if parameter.grad is not None:
                        parameter -= 0.1 * parameter.grad
    return wrapped
