"""Habits of training scripts that leave a module in pieces: where these begin, and what stays right between them."""

import collections

import pytest
import torch
from doors import compare
from modules import Of, x

from lowtide.ortmodule import ORTModule

pytestmark = [
    pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning"),
    pytest.mark.usefixtures("with_pieces"),
]


class Skipping(torch.nn.Module):
    """Goes on with data: Dynamo finds no graph in forward."""

    def __init__(self):
        super().__init__()
        layers = [torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4)) for _ in range(3)]
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, a):
        for layer in self.layers:
            if a.sum() > 1:
                continue
            a = a + layer(a)
        return a


def test_pieces_begin_in_submodules():
    wrapped = compare("ORTModule", Skipping(), lambda index: [x() - index])
    assert "3 of 3 pieces in the engine" in wrapped.fallback_reason
    assert "pieces begin in submodules" in wrapped.fallback_reason
    assert all(layer._compiled_call_impl is None for layer in wrapped.layers), "nothing stays on the user's modules"


def numbers_and_a_tensor(m, a, labels):
    m.meter.update(len(labels), a.detach().mean().item())
    return m.l(a)[labels].sum()


class Meter:
    total, count = 0.0, 0

    def __init__(self):
        self.last = collections.deque(maxlen=1)

    def update(self, count, mean):
        self.last.append(mean)
        self.total += mean * count
        self.count += count


def test_numbers_before_tensors_among_a_pieces_arguments():
    """What Dynamo knows of the tensors' sizes was taken for that of others: KeyError, an internal error."""
    module = Of(numbers_and_a_tensor)
    module.meter = Meter()
    wrapped = ORTModule(module)
    for rows in (3, 4, 5):
        labels = torch.arange(rows)
        torch.testing.assert_close(wrapped(x(rows, 4), labels), module.l(x(rows, 4)).sum())
    assert module.meter.count == 12 and "pieces in the engine" in wrapped.fallback_reason


def test_hooks_that_come_later_are_seen_by_pieces():
    def forward(m, a):
        y = m.l(a)
        return y * 2 if y.sum() > 0 else y

    module = Of(forward)
    wrapped = ORTModule(module)
    before = wrapped(x())
    module.l.register_forward_hook(lambda m, args, out: out * 0)
    assert before.abs().sum() > 0 and wrapped(x()).abs().sum() == 0


def test_backward_hooks_of_submodules_leave_the_others_in_pieces():
    class Hooked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            self.norms = []
            self.first.register_full_backward_hook(lambda m, given, incoming: self.norms.append(incoming[0].norm()))

        def forward(self, a):
            return self.last(self.first(a).tanh())

    module = Hooked()
    wrapped = ORTModule(module)
    for count in range(1, 4):
        wrapped(x(grad=True)).sum().backward()
        assert len(module.norms) == count
    torch.testing.assert_close(module.norms[-1], module.norms[0])
    assert "pieces in the engine" in wrapped.fallback_reason


def test_a_module_of_torchscript_runs_in_pytorch():
    wrapped = ORTModule(torch.jit.script(torch.nn.Linear(4, 4)))
    assert wrapped(x()).shape == (3, 4) and "torch.jit.ScriptModule" in wrapped.fallback_reason


def test_keys_that_forward_adds_to_an_argument():
    def forward(m, batch):
        batch["y"] = m.l(batch["x"])
        return batch

    wrapped = ORTModule(Of(forward))
    for _ in range(3):
        batch = {"x": x()}
        assert wrapped(batch)["y"] is batch["y"]
