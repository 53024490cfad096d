"""The order in which a plan's nodes run: it lowers peaks where that costs nothing, and never a bit of a result."""

import pytest
import torch
import zoo
from torch import nn

from lowtide import _lowtide
from lowtide.capture import capture
from lowtide.ortmodule import ORTModule


class TwoWideBranches(nn.Module):
    """Both are made before the first is read."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other, self.last = nn.Linear(16, 1024), nn.Linear(16, 1024), nn.Linear(16, 4)

    def forward(self, x):
        one, other = self.one(x).detach(), self.other(x).detach()
        most = other.amax(-1, keepdim=True)
        return self.last(x * most + one.amax(-1, keepdim=True)).square().mean()


def trained(x):
    wrapped = ORTModule(TwoWideBranches())
    loss = wrapped(x)
    loss.backward()
    assert wrapped.fallback_reason is None
    gradients = [parameter.grad for parameter in wrapped.parameters()]
    return wrapped.memory_report()["planned_peak_bytes"], [loss, *gradients]


def test_one_branch_waits_for_the_other(monkeypatch):
    x = torch.randn(64, 16)
    peak, results = trained(x)
    monkeypatch.setenv("LOWTIDE_DISABLE_PASSES", "schedule_order")
    in_program_order, expected = trained(x)
    assert peak <= in_program_order - 64 * 1024 * 4 * 0.9
    for result, other in zip(results, expected, strict=True):
        assert result is other is None or torch.equal(result, other)


@pytest.mark.parametrize("name", ["gpt2", "mixtral", "resnet"])
def test_the_timeline_is_what_is_packed(name):
    model, make_batch = zoo.build(name)
    captured = capture(model, (), make_batch())
    peaks = []
    for disabled in ([], ["schedule_order"]):
        session = _lowtide.Session(captured.graph, disabled_passes=disabled)
        places = [captured.imported.sizes.dims[name] for name in session.symbols]
        sizes = [captured.exported.sizes[index][position] for index, position in places]
        memory = session.memory(sizes)
        assert session.timeline_peak(sizes) == pytest.approx(memory["arena_bytes"], rel=0.01)
        peaks.append(memory["planned_peak_bytes"])
    assert peaks[0] <= peaks[1]
