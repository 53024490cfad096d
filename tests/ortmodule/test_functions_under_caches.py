"""Functions under functools.cache and lru_cache that make tensors: of one graph where it computes what PyTorch does."""

import copy
import functools

import pytest
import torch
from modules import Of, assert_same, step

from lowtide.ortmodule import ORTModule


@functools.lru_cache(8)
def angles(rows, columns, dtype):
    table = torch.arange(rows, dtype=dtype)[:, None] * torch.arange(columns, dtype=dtype)
    return table.cos(), table.sin()


@functools.cache
def causal(rows):
    return torch.ones(rows, rows).tril().bool()


@functools.cache
def ones_of(shape):
    return torch.ones(shape, dtype=torch.float64).cumsum(0)


class Table(torch.nn.Module):
    """Caches of a method and of a static one, by the module and by a size."""

    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(4, 4)
        self.register_buffer("scale", torch.arange(4.0))

    @functools.lru_cache(maxsize=4)  # noqa: B019
    def scaled(self, rows):
        return torch.arange(rows, dtype=self.scale.dtype)[:, None] * self.scale

    @staticmethod
    @functools.cache
    def of_four(dtype):
        return torch.arange(4, dtype=dtype)

    def forward(self, x):
        return self.l(x) * self.scaled(x.shape[1]) + self.of_four(x.dtype)


def rotated(m, x):
    cos, sin = angles(x.shape[1], 4, x.dtype)
    y = m.l(x)
    return y * cos + y.flip(-1) * sin


MODULES = {
    "angles": lambda: Of(rotated),
    "a mask": lambda: Of(lambda m, x: (m.l(x) @ x.mT).masked_fill(causal(x.shape[1]), 0.0)),
    "a shape as the key": lambda: Of(lambda m, x: m.l(x) * ones_of(x.shape[1:])),
    "twice": lambda: Of(lambda m, x: m.l(x) * ones_of(x.shape[1:]) + ones_of(x.shape[1:])),
    "methods": Table,
}


@pytest.mark.parametrize("name", MODULES)
def test_a_function_under_a_cache_is_of_the_one_graph(name):
    module = MODULES[name]().double()
    wrapped = ORTModule(module)
    reference = copy.deepcopy(module)
    for rows in (3, 3, 5, 6):
        x = torch.randn(2, rows, 4).double()
        assert_same(step(wrapped, (x,)), step(reference, (x,)))
        assert wrapped.fallback_reason is None
    kept = [*angles(5, 4, torch.float64), causal(6), ones_of((6, 4)), Table.of_four(torch.float64)]
    assert {type(tensor) for tensor in kept} == {torch.Tensor}


class Keeping(torch.nn.Module):
    """What its cached method computes is not what a graph would compute in each call."""

    def __init__(self, what):
        super().__init__()
        self.l, self.what = torch.nn.Linear(4, 4), what

    @functools.cache  # noqa: B019
    def table(self, rows):
        if self.what == "a parameter":
            return torch.ones(rows, 1, dtype=torch.float64) * self.l.weight.detach()[0]
        if self.what == "random numbers":
            return torch.rand(rows, 4, dtype=torch.float64)
        return torch.ones(rows, 4, dtype=torch.float64)

    def forward(self, x):
        table = self.table(x.shape[0])
        if self.what == "what forward writes":
            table *= 2
        return self.l(x) * table


@pytest.mark.parametrize("what", ["a parameter", "random numbers", "what forward writes"])
@pytest.mark.parametrize("free", [False, True], ids=["one size", "sizes"])
def test_what_a_cache_keeps_from_an_earlier_call_is_pytorchs(what, free):
    """In pieces, too: Dynamo runs a cached function anew in each call."""
    module = Keeping(what).double()
    reference = copy.deepcopy(module)
    wrapped, found = ORTModule(module), []
    for each in (wrapped, reference):
        torch.manual_seed(0)
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        for call in range(4):
            x = torch.arange(12.0 + 4 * free * (call % 2)).reshape(-1, 4).double()
            optimizer.zero_grad()
            loss = each(x).pow(2).mean()
            loss.backward()
            found.append((loss.detach(), *(parameter.grad.clone() for parameter in each.parameters())))
            optimizer.step()
    for ours, eagers in zip(found[:4], found[4:], strict=True):
        torch.testing.assert_close(ours, eagers)
    assert "cached function" in wrapped.fallback_reason


def test_what_holds_no_tensor_is_made_once():
    """The same object goes on to be of the cache: code may know it by identity."""

    class Settings:
        scale = 2.0

    made = []

    @functools.cache
    def settings():
        made.append(Settings())
        return made[-1]

    module = Of(lambda m, x: m.l(x) * settings().scale).double()
    wrapped, x = ORTModule(module), torch.randn(3, 4).double()
    assert_same(step(wrapped, (x,)), step(module, (x,)))
    assert len(made) == 1 and settings() is made[0] and wrapped.fallback_reason is None


class Weighted(torch.autograd.Function):
    """The nodes are in a cache that nothing names but a part of a partial function."""

    nodes = staticmethod(functools.partial(functools.cache(lambda rows, dtype: torch.arange(rows, dtype=dtype)), 4))

    @staticmethod
    def forward(ctx, x):
        return x * Weighted.nodes(dtype=x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * Weighted.nodes(dtype=gradient.dtype)


def test_a_custom_function_finds_no_tensor_of_a_trace_in_a_cache():
    """zuko's nodes of Gauss and Legendre: backward in a fresh process met the trace's."""
    module = Of(lambda m, x: Weighted.apply(m.l(x)).sin()).double()
    reference = copy.deepcopy(module)
    wrapped = ORTModule(module)
    for rows in (3, 5):
        x = torch.randn(rows, 4).double()
        assert_same(step(wrapped, (x,)), step(reference, (x,)))
    assert wrapped.fallback_reason is None
    assert type(Weighted.nodes(dtype=torch.float64)) is torch.Tensor
