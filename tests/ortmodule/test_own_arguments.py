"""A parameter, a buffer or another tensor of the module's given as an argument: forward may ask `x is self.scale`. A
graph knew it under two names as two tensors, took the other branch, and its losses were wrong."""

import copy
import logging

import pytest
import torch
from doors import DOORS, through

from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule

WIDTH = 8
SHIFT = torch.arange(3.0 * WIDTH, dtype=torch.float64).view(3, WIDTH) / 10


class Asks(torch.nn.Module):
    """Another number for each tensor that it knows."""

    def __init__(self):
        super().__init__()
        self.mix, self.other = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.ones(3, WIDTH))
        self.kept = torch.full((3, WIDTH), 0.5, dtype=torch.float64)

    def forward(self, x, weight=None):
        mixed = self.mix(x)
        if weight is not None:
            mixed = torch.nn.functional.linear(mixed, weight)
        if any(weight is parameter for parameter in self.mix.parameters()):
            return mixed * 2
        if x is self.scale:
            return mixed + 3
        if x is self.kept:
            return mixed * 4
        return mixed - 5 if x is SHIFT else mixed - self.other(x)


class AsksBetweenPieces(Asks):
    def forward(self, x, weight=None):
        mixed = self.mix(x)
        if mixed.sum().item() > 1e9:
            mixed = mixed + 1
        if weight is self.mix.weight or x is self.scale:
            return mixed * 2
        return mixed - self.other(x)


class Counts(torch.nn.Module):
    """Writes into its buffer what it reads as an argument, too."""

    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.ones(3, WIDTH))

    def forward(self, x, weight=None):
        self.scale.add_(1)
        return self.mix(x) + self.scale


class Replaces(Counts):
    def forward(self, x, weight=None):
        is_own = x is self.scale
        self.scale = self.scale * 0.5
        return self.mix(x) * 2 if is_own else self.mix(x) + self.scale


def stranger():
    return torch.linspace(-1, 1, 3 * WIDTH, dtype=torch.float64).view(3, WIDTH)


CALLS = {
    "stranger": lambda net: (stranger(),),
    "buffer": lambda net: (net.scale,),
    "its copy": lambda net: (net.scale.clone(),),
    "attribute": lambda net: (net.kept,),
    "global": lambda net: (SHIFT,),
    "another weight": lambda net: (stranger(), torch.ones(WIDTH, WIDTH, dtype=torch.float64, requires_grad=True)),
    "weight": lambda net: (stranger(), net.mix.weight),
    "weight of another layer": lambda net: (stranger(), net.other.weight),
}


def step(net, run, arguments):
    """Output, then gradients of parameters and buffers."""
    net.zero_grad()
    output = run(*arguments)
    output.pow(2).sum().backward()
    return [output.detach(), *(parameter.grad for parameter in net.parameters()), *net.buffers()]


def assert_as_eager(net, door, calls):
    eager, inner = copy.deepcopy(net).double(), copy.deepcopy(net).double()
    run = through(door, inner) if isinstance(door, str) else door(inner)
    for name in calls:
        expected = step(eager, eager, CALLS[name](eager))
        for found, want in zip(step(inner, run, CALLS[name](inner)), expected, strict=True):
            assert (found is None) == (want is None), name
            if want is not None:
                torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-9, msg=f"{name}: {found} {want}")
    return run


@pytest.mark.parametrize("calls", [list(CALLS), list(CALLS)[::-1]], ids=["strangers first", "own first"])
def test_forward_asks_whether_an_argument_is_its_own(calls):
    assert assert_as_eager(Asks(), "ORTModule", calls).fallback_reason is None


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("first", ["stranger", "buffer"])
def test_between_pieces(door, first, with_pieces):
    other = "buffer" if first == "stranger" else "stranger"
    run = assert_as_eager(AsksBetweenPieces(), door, [first, other, "its copy", "weight", "another weight", other])
    assert door != "ORTModule" or "2 of 2 pieces in the engine" in run.fallback_reason


@pytest.mark.parametrize("module", [Counts, Replaces])
@pytest.mark.parametrize("first", ["stranger", "buffer"])
def test_an_argument_that_forward_also_writes(module, first):
    other = "buffer" if first == "stranger" else "stranger"
    run = assert_as_eager(module(), "ORTModule", [first, other, "its copy", first, other, "stranger"])
    assert run.fallback_reason is None


def test_the_log_tells_of_another_graph(caplog):
    with caplog.at_level(logging.INFO):
        wrapped = lambda net: ORTModule(net, DebugOptions(LogLevel.INFO))  # noqa: E731
        assert_as_eager(Asks(), wrapped, ["stranger", "buffer", "stranger", "buffer"])
    told = [line for line in caplog.messages if "tensor of the module's own" in line]
    assert len(told) == 1 and "argument `x` is now a tensor of the module's own" in told[0]


def test_graphs_from_the_disk_cache_are_of_strangers(tmp_path, monkeypatch):
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path))
    net = Asks()
    for calls in (["stranger", "buffer"], ["buffer", "stranger"], ["buffer"]):
        assert_as_eager(net, "ORTModule", calls)
    assert len(list(tmp_path.glob("*.graph"))) == 1
