"""Teacher forcing whose probability changes from step to step, and choices among a few: a graph for each way."""

import random

import numpy
import pytest
import torch
from cached import graphs

from lowtide.ortmodule import ORTModule


class Decoder(torch.nn.Module):
    def __init__(self, forced):
        super().__init__()
        self.cell, self.out, self.forced = torch.nn.GRUCell(4, 4), torch.nn.Linear(4, 4), forced
        self.rate = 1.0

    def forward(self, x, h, p):
        given, made = x[0], []
        for index in range(2):
            h = self.cell(given, h)
            made.append(self.out(h))
            given = x[index] if self.forced(self, p) else made[-1]
        return torch.stack(made) + given


FORCED = {
    "torch": lambda m, p: torch.rand([]) < p,
    "torch, as a number": lambda m, p: torch.rand(1).item() < p,
    "python": lambda m, p: random.random() < p,
    "python, in an attribute": lambda m, p: random.random() < m.rate,
    "python, turned round": lambda m, p: p * 0.9 + 0.05 >= random.random(),
    "numpy": lambda m, p: numpy.random.rand() < p,
    "one of two": lambda m, p: random.choice([True, False]),
    "one of a range": lambda m, p: random.randrange(2),
    "an index": lambda m, p: [0, 1][random.randint(0, 1)],
    "the whole part": lambda m, p: [0, 1][int(torch.empty(1).uniform_(0.0, 2.0).item())],
    "python's whole part": lambda m, p: [0, 1][int(random.uniform(0, 2))],
    "one whole part": lambda m, p: [1][int(torch.empty(1).uniform_(0.0, 1.0).item())],  # torchvision's choice of a size
}

IN_CI = ("torch", "python", "numpy", "one of two")  # the others with ./dev test --all


def seed():
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)


def run(forced, wrap, steps=12):
    seed()
    module = Decoder(forced).double()
    wrapped, found = wrap(module), []
    for index in range(steps):
        module.rate = 0.9**index
        x = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(index))
        module.zero_grad()
        out = wrapped(x, torch.zeros(3, 4, dtype=torch.float64), 0.9**index)
        out.sum().backward()
        found.append([out, *(p.grad.clone() for p in module.parameters())])
    return wrapped, found, (random.random(), numpy.random.rand(), torch.rand(1).item())


@pytest.mark.parametrize(
    "name", [name if name in IN_CI else pytest.param(name, marks=pytest.mark.long) for name in FORCED]
)
def test_each_way_has_a_graph(name):
    _, expected, rest = run(FORCED[name], lambda module: module)
    wrapped, found, ours = run(FORCED[name], ORTModule)
    torch.testing.assert_close(found, expected)
    assert ours == rest and wrapped.fallback_reason is None
    (counts,) = wrapped.transition_counts().values()
    assert sum(counts.values()) <= 6 and "limit" not in counts and "constant" not in counts


def test_a_second_start_takes_the_ways_from_disk(folder, exports):
    for _ in range(3):
        before = len(exports)
        wrapped, found, _ = run(FORCED["python"], ORTModule)
        torch.testing.assert_close(found, run(FORCED["python"], lambda module: module)[1])
        assert wrapped.fallback_reason is None
    assert graphs(folder) and len(exports) == before


def test_one_of_many_is_pytorchs():
    module = Decoder(lambda m, p: list(range(100))[random.randint(0, 99)] > 50).double()
    wrapped = ORTModule(module)
    wrapped(torch.randn(2, 3, 4).double(), torch.zeros(3, 4).double(), 0.5)
    assert "Python's random numbers" in wrapped.fallback_reason
