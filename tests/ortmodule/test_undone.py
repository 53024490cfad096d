"""A call that Dynamo refuses when some of its pieces have run begins anew in PyTorch, from the state that it found."""

import collections
import random

import numpy
import pytest
import torch

from lowtide.ortmodule import ORTModule

pytestmark = [
    pytest.mark.usefixtures("with_pieces"),
    pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning"),
]


class Kind(collections.namedtuple("Kind", "scale other")):
    """Dynamo asks for its length, and cannot."""

    def __len__(self):
        raise TypeError("it has no length")


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = Kind(2.0, 1)

    def forward(self, x):
        return torch.nn.functional.dropout(x, 0.5) * self.kind.scale


class Noisy(torch.nn.Module):
    """Draws from other generators than PyTorch's, and keeps what it drew."""

    def __init__(self):
        super().__init__()
        self.drawn, self.largest, self.last = [], {}, collections.deque(maxlen=3)

    def forward(self, x):
        noise = torch.from_numpy(numpy.random.normal(0.0, 1.0, x.shape)) * random.gauss(1.0, 0.1)
        self.drawn.append(noise)
        self.last.append(float(noise.sum()))
        self.largest[len(self.drawn)] = noise.max()
        return x + noise


class Averaged(torch.nn.Module):
    """Statistics that are written in place, that are replaced, in an attribute, and a count."""

    def __init__(self):
        super().__init__()
        self.norm, self.calls = torch.nn.BatchNorm1d(4), 0
        self.register_buffer("mean", torch.zeros(4))
        self.largest = torch.zeros(4, dtype=torch.float64)

    def forward(self, x):
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        self.largest = self.largest + x.detach().amax(0)
        if self.calls == 2:
            self.second = True
        return self.norm(x)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.average, self.scaled = torch.nn.Linear(4, 4), Averaged(), Scaled()

    def forward(self, x):
        return self.scaled(self.average(self.layer(x)))


class NoisyNet(Net):
    def __init__(self):
        super().__init__()
        self.noisy = Noisy()

    def forward(self, x):
        return super().forward(self.noisy(x))


def three(cls):
    """A module, another one with the same parameters, the first one wrapped."""
    module, theirs = cls().double(), cls().double()
    theirs.load_state_dict(module.state_dict())
    return module, theirs, ORTModule(module)


def test_what_was_drawn_and_put_into_containers_is_undone():
    module, theirs, ours = three(NoisyNet)
    for step in range(4):
        x = torch.randn(6, 4, dtype=torch.float64)
        results = []
        for call in (ours, theirs):
            for seed in (torch.manual_seed, random.seed, numpy.random.seed):
                seed(step)
            results.append((call(x), numpy.random.rand(), random.random()))
        torch.testing.assert_close(*results)
        torch.testing.assert_close(module.noisy.drawn, theirs.noisy.drawn)
        assert list(module.noisy.last) == list(theirs.noisy.last)
        assert list(module.noisy.largest) == list(theirs.noisy.largest)


def test_what_ran_before_is_undone():
    module, theirs, ours = three(Net)
    for step in range(4):
        x = torch.randn(6, 4, dtype=torch.float64)
        results = []
        for call in (ours, theirs):
            torch.manual_seed(step)
            results.append(call(x))
        torch.testing.assert_close(*results)
        torch.testing.assert_close(dict(module.named_buffers()), dict(theirs.named_buffers()))
        assert module.average.calls == theirs.average.calls == step + 1
        torch.testing.assert_close(module.average.largest, theirs.average.largest)
