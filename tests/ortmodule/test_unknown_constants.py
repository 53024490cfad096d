"""A temperature that falls by NumPy's functions, in an attribute: behind a second change Dynamo wrote nan for it."""

import copy

import numpy as np
import pytest
import torch

from lowtide.compile_backend import lowtide
from lowtide.ortmodule import ORTModule


class Annealed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls, self.temperature = torch.nn.Linear(4, 4), 0, 1.0

    def forward(self, x):
        if self.calls % 2 == 1:
            self.temperature = float(np.maximum(self.temperature * np.exp(-0.1 * self.calls), 0.5))
        self.calls += 1
        return torch.softmax(self.layer(x) / self.temperature, -1)


def steps(module, call):
    found = []
    for step in range(6):
        out = call(torch.full((3 + step % 2, 4), 0.5 + step, dtype=torch.float64))
        module.zero_grad()
        out[:, 0].sum().backward()
        found.append((out.detach(), module.temperature, module.layer.weight.grad))
    return found


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_pieces_compute_it_as_eager_does(with_pieces):
    theirs = Annealed().double()
    ours = copy.deepcopy(theirs)
    torch.testing.assert_close(steps(ours, ORTModule(ours)), steps(theirs, theirs))


def test_the_backend_says_what_to_do():
    torch.compiler.reset()
    module = Annealed().double()
    with pytest.raises(Exception, match="compute it with Python's math"):
        steps(module, torch.compile(module, backend=lowtide))
