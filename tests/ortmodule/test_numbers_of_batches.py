"""Numbers that follow the batch or a schedule: counts of samples that forward adds up, batch norm's momentum."""

import copy

import pytest
import torch
from modules import assert_same, of, step

from lowtide.ortmodule import ORTModule


def given(seed=1, rows=3):
    return torch.randn(rows, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def added(m, a):
    m.seen += a.shape[0]
    return m.l(a)


def averaged(m, a):
    m.seen += len(a)
    return m.l(a) / m.seen


def added_before(m, a):
    m.seen = len(a) + m.seen
    return m.l(a) * (m.seen - 1)


@pytest.mark.parametrize("function", [added, averaged, added_before])
def test_counts_of_samples(function):
    module = of(function, seen=0)
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    for index in range(10):
        rows = 3 + index % 4
        assert_same(step(wrapped, [given(index, rows)]), step(eager, [given(index, rows)]), rtol=1e-12, atol=1e-13)
        assert wrapped.fallback_reason is None
        assert type(module.seen) is int and module.seen == eager.seen
    (counts,) = wrapped.transition_counts().values()
    assert counts == {"first call": 1, "number": 1}


def test_a_momentum_that_changes():
    torch.manual_seed(0)
    norms = [torch.nn.BatchNorm1d(4) for _ in range(2)]
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), norms[0], torch.nn.Tanh(), norms[1]).double()
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    for index in range(8):
        for each in (eager, module):
            each[1].momentum, each[3].momentum = 0.5**index, 0.5 / (1 + index)
            each.train(index != 5)
        assert_same(step(wrapped, [given(index, 6)]), step(eager, [given(index, 6)]), rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(list(module.buffers()), list(eager.buffers()), rtol=1e-12, atol=1e-13)
        assert wrapped.fallback_reason is None
    counts = wrapped.transition_counts()
    assert counts["in training mode"] == {"first call": 1, "number": 1}


def test_running_statistics_of_a_call_are_read_behind_it():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(4)

        def forward(self, a):
            return self.norm(a) + self.norm.running_mean

    module = Model().double()
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    for index in range(6):
        module.norm.momentum = eager.norm.momentum = 1 / (1 + index)
        assert_same(step(wrapped, [given(index, 6)]), step(eager, [given(index, 6)]), rtol=1e-11, atol=1e-12)
        assert wrapped.fallback_reason is None
