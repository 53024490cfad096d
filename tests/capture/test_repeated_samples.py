"""A batch of one is exported as several samples, unless the model asks: then the trace ends there."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from lowtide.capture import capture
from lowtide.ortmodule import ORTModule


class Asking(torch.nn.Module):
    """Ten layers, and a question about the batch before the layer `at`."""

    def __init__(self, at):
        super().__init__()
        self.layers, self.at = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(10)), at

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            if number == self.at and x.shape[0] == 1:
                x = x * 2
            x = layer(x)
        return x


class Count(TorchFunctionMode):
    layers = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.layers += func is torch.nn.functional.linear
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("at, layers", [(0, 11), (5, 16), (None, 10)])
def test_a_trace_ends_where_the_batch_is_asked_for(at, layers):
    with Count() as count:
        captured = capture(Asking(at), (torch.randn(1, 4),))
    assert count.layers == layers, "layers that were traced, in both exports"
    assert captured.accepts(((1, 4),)) and captured.accepts(((3, 4),)) is (at is None)


def test_larger_batches_are_never_asked_for():
    with Count() as count:
        captured = capture(Asking(0), (torch.randn(3, 4),))
    assert count.layers == 10
    assert captured.accepts(((5, 4),)) and not captured.accepts(((1, 4),))


def test_each_batch_has_the_graph_of_its_answer():
    torch.manual_seed(0)
    module = Asking(3).double()
    ours = ORTModule(module)
    for rows in (1, 3, 1, 2):
        x = torch.randn(rows, 4, dtype=torch.float64)
        torch.testing.assert_close(ours(x), module(x))
    assert ours.fallback_reason is None
