"""Mixtures of experts, whose counts of rows are data: one graph."""

import copy

import pytest
import torch
import torch.nn.functional as F
from counted import assert_one_graph, rows
from modules import Of, assert_same, check, step

from lowtide.ortmodule import ORTModule


class Experts(torch.nn.Module):
    """Two of four experts for each row."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.router = torch.nn.Linear(4, 4)
        self.up = torch.nn.Parameter(torch.randn(4, 8, 4))
        self.down = torch.nn.Parameter(torch.randn(4, 4, 8))

    def forward(self, x):
        weights, experts = self.router(x).softmax(-1).topk(2)
        return self.way(self, x, weights, experts)


def one_expert_after_another(m, x, weights, experts):
    result = torch.zeros_like(x)
    for expert in range(4):
        row, choice = torch.where(experts == expert)
        y = F.linear(F.silu(F.linear(x[row], m.up[expert])), m.down[expert])
        result.index_add_(0, row, y * weights[row, choice, None])
    return result


def product_of_groups(x, weight, ends):
    """As transformers writes it in traces: PyTorch's own has no trace but in bf16."""
    import transformers.integrations.moe  # noqa: F401, registers the op

    return torch.ops.transformers.grouped_mm_fallback(x, weight, ends)


def by_groups(m, x, weights, experts):
    order = experts.reshape(-1).argsort(stable=True)
    counts = torch.histc(experts.reshape(-1).float(), bins=4, min=0, max=3)
    ends = counts.cumsum(0).int()
    y = product_of_groups(x[order // 2], m.up.transpose(-2, -1), ends)
    y = product_of_groups(F.silu(y), m.down.transpose(-2, -1), ends)
    y = (y * weights.reshape(-1)[order, None])[order.argsort()]
    return y.view(*x.shape[:1], 2, -1).sum(1)


def test_parts_of_counted_sizes_that_are_joined_again():
    """A mixture that splits the sorted rows by counts, joins what its experts make, and adds that to its rows."""

    def function(m, x):
        chosen = (x[:, :3] > 0).sum(1)
        counts = F.one_hot(chosen, 4).sum(0).tolist()
        order = chosen.argsort(stable=True)
        parts = x[order].split(counts, dim=0)
        joined = torch.cat([m.l(part) * (1 + place) for place, part in enumerate(parts)])
        return torch.zeros_like(x).index_add(0, order, joined * x.sum(1)[order, None])

    module = Of(function).double()
    wrapped = ORTModule(copy.deepcopy(module))
    for count in (6, 8, 9):
        for chosen in (1, 4):
            given = rows(chosen, count)
            assert_same(step(wrapped, (given,)), step(module, (given,)))
            assert wrapped.fallback_reason is None
    assert sum(wrapped.transition_counts()["in training mode"].values()) == 1


def test_a_question_on_a_count_beside_a_size():
    """Loops of a graph: those that are there go, one for each node comes, and nothing is done for no edges."""

    def function(m, x):
        kept = x[x[:, 0] > 0]
        edges = torch.cat([kept, x])
        return x.sum() if edges.numel() == 0 else m.l(edges)

    module = Of(function).double()
    wrapped = ORTModule(copy.deepcopy(module))
    for count in (6, 8, 9):
        given = rows(3, count)
        assert_same(step(wrapped, (given,)), step(module, (given,)))
        assert wrapped.fallback_reason is None
    assert sum(wrapped.transition_counts()["in training mode"].values()) == 1
    for count in (1, 0):
        given = rows(0, count)
        assert_same(step(wrapped, (given,)), step(module, (given,)))


def by_counts(m, x, weights, experts):
    """There are as many counts as experts, which no data changes: topk's labels are below that."""
    labels = experts.reshape(-1)
    order = labels.argsort(stable=True)
    parts = x[order // 2].split(torch.bincount(labels, minlength=4).tolist())
    y = torch.cat(
        [F.linear(F.silu(F.linear(part, up)), down) for part, up, down in zip(parts, m.up, m.down, strict=True)]
    )
    y = y * weights.reshape(-1)[order, None]
    return torch.zeros_like(x).index_add(0, order // 2, y)


@pytest.mark.parametrize("way", [one_expert_after_another, by_groups, by_counts], ids=lambda way: way.__name__)
def test_mixtures_of_experts_are_one_graph(way):
    wrapped = assert_one_graph(Experts(way).double(), [(rows(4, count),) for count in (6, 9, 2)])
    assert wrapped._training_manager.last_agent.session.report["fallbacks"] == []


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16])
def test_counts_of_chosen_labels_are_as_many_for_all_data(dtype):
    def forward(m, x):
        labels = m.l(x).topk(2, -1)[1].to(dtype)
        return m.l(x) * torch.bincount(labels.flatten(), minlength=4)

    module = Of(forward).double()
    for size in (3, 5):
        check(module, torch.randn(size, 4, dtype=torch.float64))
