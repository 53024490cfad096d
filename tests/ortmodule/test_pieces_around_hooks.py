"""A submodule whose hook or forward changes Python's objects breaks the graphs of all around it: none of them is tried
as a graph of its own, and the pieces are there from the first call on."""

import collections
import re

import pytest
import torch

from lowtide.ortmodule import ORTModule

pytestmark = pytest.mark.usefixtures("with_pieces")


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.seen = torch.nn.Linear(8, 8), None

    def forward(self, x):
        return self.linear(x).tanh()


class Remembering(Layer):
    def forward(self, x):
        y = self.linear(x).tanh()
        self.seen = f"{y.detach().abs().max().item():.2f}"
        return y


class Body(torch.nn.Module):
    def __init__(self, middle):
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(), middle, Layer()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Model(torch.nn.Module):
    def __init__(self, middle):
        super().__init__()
        self.body, self.head = Body(middle), torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.body(x))


def hooked():
    layer, seen = Layer(), collections.deque(maxlen=1)

    def note(module, inputs, output):
        seen.append(output.detach().abs().max().item())

    layer.register_forward_hook(note)
    return layer


@pytest.mark.parametrize("middle", [hooked, Remembering])
def test_what_changes_in_a_submodule_breaks_all_around_it(middle):
    model = ORTModule(Model(middle()).double())
    x = torch.randn(4, 8, dtype=torch.float64)
    for _ in range(3):
        model(x).sum().backward()
        assert re.match(r"(\d+) of \1 pieces in the engine", model.fallback_reason)
