"""int() of a tensor of whole numbers is a size, a count or a number of one graph, as item() of it is. (It was that only
of a largest number; the rest ran in pieces.)"""

import copy

import pytest
import torch

from lowtide.ortmodule import ORTModule


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 8)


class FirstRows(Layer):
    def forward(self, x, lengths):
        return self.fc(x[: int(lengths[0])]).square().mean()


class Behind(Layer):
    def forward(self, x, lengths):
        return self.fc(x[int(lengths.min()) :]).square().sum()


class Average(Layer):
    def forward(self, x, lengths):
        return self.fc(x).square().sum() / max(int(lengths.sum()), 1)


class Counted(Layer):
    def forward(self, x, lengths):
        rows = int((lengths > 4).sum())
        return (self.fc(x).mean() * x.new_ones(rows, 2)).sum() + rows


class Best(Layer):
    def forward(self, x, lengths):
        count = int((lengths > 3).long().sum())
        return torch.topk(self.fc(x).mean(1), count).values.square().sum()


class EachRow(Layer):
    def forward(self, x, lengths):
        return sum(self.fc(x[row : row + 1, : int(lengths[row]) % 8 * 0 + 8]).mean() for row in range(x.shape[0]))


CALLS = ([3, 5, 1, 6, 2, 4], [6, 2, 2, 5, 5, 5], [1, 7, 4, 4, 4, 8])


@pytest.mark.parametrize("make", [FirstRows, Behind, Average, Counted, Best, EachRow])
def test_one_graph_for_all_numbers(make):
    model = make().double()
    models, agents = (model, ORTModule(copy.deepcopy(model))), set()
    for lengths in CALLS:
        step(models, lengths)
        assert models[1].fallback_reason is None
        agents.add(models[1]._training_manager.last_agent)
    assert len(agents) == 1


def step(models, lengths):
    x, found = torch.randn(len(lengths), 8, dtype=torch.float64), []
    for each in models:
        each.zero_grad()
        loss = each(x, torch.tensor(lengths))
        loss.backward()
        found.append([loss.detach(), [parameter.grad for parameter in each.parameters()]])
    torch.testing.assert_close(*found)


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
@pytest.mark.parametrize("make", [FirstRows, Behind])
@pytest.mark.parametrize("number", [-2, 0, 6, 20, -20])
def test_numbers_that_slices_clamp(make, number):
    model = make().double()
    models = model, ORTModule(copy.deepcopy(model))
    for lengths in (CALLS[0], [number] * 6, CALLS[1]):
        found = []
        x = torch.randn(6, 8, dtype=torch.float64)
        for each in models:
            each.zero_grad()
            loss = each(x, torch.tensor(lengths))
            loss.backward()
            found.append([loss.detach(), [parameter.grad for parameter in each.parameters()]])
        torch.testing.assert_close(*found, equal_nan=True)
