"""torch.set_num_threads after a module was wrapped, or between its steps."""

import pytest
import torch

from lowtide.ortmodule import ORTModule


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256))

    def forward(self, x):
        return self.layers(x).square().mean()


def wrapped(**options):
    torch.manual_seed(0)
    return ORTModule(Layers(), **options)


def stepped(module, x):
    for _ in range(2):
        module.zero_grad(set_to_none=True)
        loss = module(x)
        loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in module.parameters())]


def test_a_step_is_planned_for_the_threads_that_there_are(threads):
    x = torch.randn(512, 256)
    threads(1)
    module = wrapped()
    alone = stepped(module, x)
    peak_of_one = module.memory_report()["planned_peak_bytes"]
    threads(2)
    by_two = stepped(module, x)
    fresh = wrapped()
    stepped(fresh, x)
    peak_of_two = fresh.memory_report()["planned_peak_bytes"]
    assert peak_of_two > peak_of_one  # each thread packs into scratch of its own
    assert module.memory_report()["planned_peak_bytes"] == peak_of_two
    threads(1)
    stepped(module, x)
    assert module.memory_report()["planned_peak_bytes"] == peak_of_one
    assert all(torch.equal(a, b) for a, b in zip(alone, by_two, strict=True))


def test_a_budget_holds_for_other_threads(threads):
    x = torch.randn(512, 256)
    threads(1)
    module = wrapped()
    stepped(module, x)
    budget = module.memory_report()["planned_peak_bytes"] * 21 // 20
    threads(2)
    stepped(module, x)
    assert module.memory_report()["planned_peak_bytes"] > budget
    threads(1)
    limited = wrapped(memory_budget=budget)
    alone = stepped(limited, x)
    threads(2)
    by_two = stepped(limited, x)
    assert limited.memory_report()["planned_peak_bytes"] <= budget
    assert all(torch.equal(a, b) for a, b in zip(alone, by_two, strict=True))
