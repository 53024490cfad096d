"""Detectors match what they found with what there is by scipy.optimize.linear_sum_assignment, in the loss: an op of the
graph, where each match was a break between pieces (DETR had 32 of them)."""

import copy

import numpy
import pytest
import torch

from lowtide.ortmodule import ORTModule

optimize = pytest.importorskip("scipy.optimize")
linear_sum_assignment = optimize.linear_sum_assignment
QUERIES, WIDTH = 7, 4


class Matched(torch.nn.Module):
    """The loss of what is matched, as transformers' DETR computes it."""

    def __init__(self, assign, returns_arrays=False):
        super().__init__()
        self.up, self.assign, self.returns_arrays = torch.nn.Linear(WIDTH, WIDTH), assign, returns_arrays

    @torch.no_grad()
    def match(self, found, targets):
        cost = torch.cdist(found.flatten(0, 1), torch.cat(targets), p=1).view(*found.shape[:2], -1).cpu()
        sizes = [len(target) for target in targets]
        return [self.assign(part[index]) for index, part in enumerate(cost.split(sizes, -1))]

    def forward(self, x, targets):
        found = self.up(x)
        arrays = self.match(found, targets)
        pairs = [tuple(torch.as_tensor(each, dtype=torch.int64) for each in pair) for pair in arrays]
        rows = torch.cat([torch.full_like(row, index) for index, (row, _) in enumerate(pairs)])
        wanted = torch.cat([target[column] for target, (_, column) in zip(targets, pairs, strict=True)])
        count = torch.clamp(torch.as_tensor([sum(len(target) for target in targets)], dtype=torch.float), min=1).item()
        loss = (found[rows, torch.cat([row for row, _ in pairs])] - wanted).abs().sum() / count
        return (loss, arrays[0][0]) if self.returns_arrays else loss


class MatchedInGroups(Matched):
    """As transformers' LW-DETR: each group of queries is matched with all targets, and NumPy joins their indices."""

    def match(self, found, targets):
        groups = found.split((3, 4), dim=1)
        matches = [super(MatchedInGroups, self).match(group, targets) for group in groups]
        joined = []
        for first, second in zip(*matches, strict=True):
            rows = numpy.concatenate([first[0], second[0] + 3])
            joined.append((rows, numpy.concatenate([first[1], second[1]])))
        return joined


def assign_global(cost):
    return linear_sum_assignment(cost)


def assign_by_attribute(cost):
    return optimize.linear_sum_assignment(cost, maximize=True)


def given(*counts):
    generator = torch.Generator().manual_seed(sum(counts))
    x = torch.randn(len(counts), QUERIES, WIDTH, generator=generator, dtype=torch.float64)
    return x, [torch.randn(count, WIDTH, generator=generator, dtype=torch.float64) for count in counts]


def step(module, run, arguments):
    module.zero_grad()
    loss = run(*arguments)
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in module.parameters())]


# Graphs: with no more targets than queries, or more; each group has its own queries.
@pytest.mark.parametrize(("make", "graphs"), [(Matched, 2), (MatchedInGroups, 4)])
@pytest.mark.parametrize("assign", [assign_global, assign_by_attribute])
def test_matching_is_in_the_graph(assign, make, graphs):
    eager = make(assign).double()
    module = copy.deepcopy(eager)
    wrapped, agents = ORTModule(module), set()
    for counts in ((3, 4), (5, 2), (2, 6), (9, 3)):  # the last has more than there are queries
        for found, want in zip(step(module, wrapped, given(*counts)), step(eager, eager, given(*counts)), strict=True):
            torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-12)
        assert wrapped.fallback_reason is None
        agents.add(wrapped._training_manager.last_agent)
    assert len(agents) == graphs
    assert optimize.linear_sum_assignment is linear_sum_assignment


def test_indices_that_forward_returns_are_arrays():
    module = Matched(assign_global, returns_arrays=True).double()
    wrapped = ORTModule(module)
    _, indices = wrapped(*given(3, 4))
    assert type(indices) is type(module(*given(3, 4))[1])
    assert "linear_sum_assignment" in wrapped.fallback_reason
