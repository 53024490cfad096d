"""Sizes and positions that get smaller as a size from data grows: rows in each group, of which there are as many as the
labels have values. At the most that the number of groups may be, they are not what they may be at the most."""

import pytest
import torch
from modules import Of, x

from lowtide.ortmodule import ORTModule


def trains_as_eager(forward):
    module = Of(forward)
    wrapped = ORTModule(module)
    reasons = []
    for rows in (9, 9, 12, 15):
        given, labels = x(rows, 4), torch.arange(rows) % 3
        steps = []
        for each in (wrapped, module.forward):
            module.zero_grad()
            output = each(given, labels)
            output.square().sum().backward()
            steps.append((output.detach(), *(parameter.grad.clone() for parameter in module.parameters())))
        torch.testing.assert_close(*steps)
        reasons.append(wrapped.fallback_reason)
    return reasons


def test_a_position_that_leaves_its_tensor_at_the_most():
    """Binding refused it, and the error was the user's: ProgramError, operand … leaves its buffer."""

    def forward(m, a, labels):
        rows = a.shape[0] // (a.shape[0] // labels.unique().shape[0])
        marks, y = torch.zeros(a.shape[0]), m.l(a)
        for place in range(2):
            marks[place * rows] = y[place].sum()
        return marks

    assert trains_as_eager(forward) == [None] * 4


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_sizes_that_fit_one_another_but_at_the_most():
    """InvalidArgument: these input sizes do not broadcast."""

    def forward(m, a, labels):
        groups = a.shape[0] // labels.unique().shape[0]
        means = m.l(a).view(groups, a.shape[0] // groups, 4).mean(1)
        places = torch.zeros(a.shape[0])
        for group in range(groups):
            for place in range(a.shape[0] // groups):
                places[group * (a.shape[0] // groups) + place] = (means[group] / (place + 1)).sum()
        kept = torch.where(labels >= 0)[0]
        return places[kept] / torch.ones(kept.shape[0])

    assert all(
        reason is None or "in the engine" in reason or "at the most" in reason for reason in trains_as_eager(forward)
    )
