"""one_hot without a number of classes and bincount are as large as their largest label says: one graph. (They ran in
pieces, with an export for each number of labels.)"""

import copy

import pytest
import torch

from lowtide.ortmodule import ORTModule

one_hot = torch.nn.functional.one_hot


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 8)


class OneHot(Layer):
    def forward(self, x, labels):
        return (one_hot(labels).to(x.dtype).t() @ self.fc(x)).square().sum()


class AsManyColumns(Layer):
    def forward(self, x, labels):
        classes = one_hot(labels).to(x.dtype)
        return -(classes * self.fc(x).log_softmax(-1)[:, : classes.shape[1]]).sum()


class Counts(Layer):
    def forward(self, x, labels):
        return (self.fc(x).square().sum(1) / (1 + torch.bincount(labels))[labels]).sum()


class AtLeast(Layer):
    def forward(self, x, labels):
        counts = torch.bincount(labels, minlength=20)
        return (self.fc(x).square().sum(1) / (1 + counts)[labels]).sum() * counts.shape[0]


class AsManyPlaces(Layer):
    """torch_geometric's medians and quantiles of the rows of each graph."""

    def forward(self, x, labels):
        counts = torch.bincount(labels, minlength=int(labels.max()) + 1)
        return (self.fc(x).square().sum(1) / (1 + counts)[labels]).sum() * counts.shape[0]


class ClassWeights(Layer):
    def forward(self, x, labels):
        weight = 1 / (1 + labels.bincount(minlength=8).to(x.dtype))
        return torch.nn.functional.cross_entropy(self.fc(x), labels, weight=weight)


class Weighted(Layer):
    def forward(self, x, labels):
        sums = torch.bincount(labels, weights=x[:, 0])
        return (self.fc(x).square().sum(1) * sums[labels]).sum()


CALLS = ([3, 5, 1, 0, 2, 4, 4], [2, 2, 2, 2], [1, 7, 4, 4, 4, 0, 0, 5, 3])


@pytest.mark.parametrize("make", [OneHot, AsManyColumns, Counts, AtLeast, AsManyPlaces, ClassWeights, Weighted])
def test_one_graph_for_all_labels(make):
    models, agents = pair(make), set()
    for labels in CALLS:
        step(models, labels)
        assert models[1].fallback_reason is None
        agents.add(models[1]._training_manager.last_agent)
    assert len(agents) == 1


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
@pytest.mark.parametrize("make", [OneHot, Counts, AtLeast, AsManyPlaces])
def test_labels_beyond_what_is_planned(make):
    models = pair(make)
    for labels in (CALLS[0], [9, 30], [90, 90], [40, 41], [50, 2], CALLS[0], [0, 100]):
        step(models, labels)


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
@pytest.mark.parametrize("make", [OneHot, Counts])
def test_labels_below_zero_are_the_users_mistake(make):
    models = pair(make)
    step(models, CALLS[0])
    for model in models:
        with pytest.raises(RuntimeError, match="non-negative"):
            model(torch.randn(3, 8, dtype=torch.float64), torch.tensor([1, -1, 2]))


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_no_labels():
    models = pair(AtLeast)
    for labels in (CALLS[0], [], CALLS[1]):
        step(models, labels)


class Chosen(Layer):
    """The better of two real numbers that forward reads, as Python chooses."""

    def __init__(self):
        super().__init__()
        self.best, self.least = -1e9, 1e9

    def forward(self, x, labels):
        h = self.fc(x)
        self.best, self.least = max(self.best, h.mean().item()), min(h.mean().item(), self.least)
        return h.square().sum() * max([row.sum().item() for row in h[:3]]) + min(0, h[0, 0].item())


def test_max_and_min_of_numbers_from_data():
    models = pair(Chosen)
    for labels in (*CALLS, *CALLS):
        step(models, labels)
        assert (models[0].best, models[0].least) == pytest.approx((models[1].best, models[1].least), rel=1e-12)
        assert models[1].fallback_reason is None


class NotANumber(Layer):
    def forward(self, x, labels):
        nan = (x[0, 0].detach() * float("nan")).item()
        first, second = (max(nan, x[0, 1].item()), max(x[0, 1].item(), nan))
        third, fourth = min(nan, 2.0), min(2.0, nan)
        return self.fc(x).sum(), *(torch.full((), each, dtype=x.dtype) for each in (first, second, third, fourth))


def test_max_and_min_of_nan():
    models = pair(NotANumber)
    x = torch.randn(4, 8, dtype=torch.float64)
    found = [model(x, torch.tensor([1])) for model in models]
    torch.testing.assert_close(*found, equal_nan=True)
    assert models[1].fallback_reason is None


def pair(make):
    model = make().double()
    return model, ORTModule(copy.deepcopy(model))


def step(models, labels):
    x, found = torch.randn(len(labels), 8, dtype=torch.float64), []
    for each in models:
        each.zero_grad()
        loss = each(x, torch.tensor(labels, dtype=torch.int64))
        loss.backward()
        found.append([loss.detach(), [parameter.grad for parameter in each.parameters()]])
    torch.testing.assert_close(*found)
