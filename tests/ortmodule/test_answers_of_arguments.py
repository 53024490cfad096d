"""Loops over and branches on whole numbers that forward computes of its arguments alone: one graph for each answer.
(Each of them broke the graph, and Dynamo's pieces were exported again for each number.)"""

import copy
import itertools

import pytest
import torch

from lowtide.ortmodule import ORTModule


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 8)
        self.register_buffer("phase", torch.tensor([0, 1]))


class Repeated(Layer):
    def forward(self, x, labels):
        for _ in range(labels[0].item() + 1):
            x = self.fc(x).tanh()
        return x.square().sum()


class EachLabel(Layer):
    def forward(self, x, labels):
        h = self.fc(x)
        return sum(h[labels == label].sum(0).square().sum() for label in range(int(labels.max()) + 1))


class EachUnique(Layer):
    def forward(self, x, labels):
        h = self.fc(x)
        means = torch.stack([h[labels == label].mean(0) for label in torch.unique(labels)])
        return torch.cdist(means, means + 1).sum()


class Branch(Layer):
    def forward(self, x, labels):
        h = self.fc(x)
        return h.square().sum() if (labels > 2).any() else h.sum()


class OfSizes(Layer):
    def forward(self, x, labels):
        h = self.fc(x)
        return h.square().sum() if labels.sum().item() > 3 * labels.shape[0] else h.sum()


class Compared(Layer):
    def forward(self, x, labels):
        h = self.fc(x)
        return h.square().sum() if torch.equal(labels, torch.arange(6)) else h.sum()


class OfBuffer(Layer):
    def forward(self, x, labels):
        h = self.fc(x)
        return h.square().sum() if (labels[:2] == self.phase).all() else h.sum()


class Split(Layer):
    def forward(self, x, labels):
        counts = torch.bincount(labels, minlength=6)
        parts = self.fc(x)[labels.argsort(stable=True)].split(counts.tolist())
        return sum(part.square().sum() * (place + 1) for place, part in enumerate(parts))


class OfTable(Layer):
    """As Qwen2-VL looks its kinds of tokens up: numbers of data had no hash."""

    def forward(self, x, labels):
        ways = {0: torch.sin, 1: torch.tanh, 2: torch.exp}
        for kind, rows in itertools.groupby(labels.tolist()):
            x = ways.get(kind, torch.cos)(self.fc(x)) * len(list(rows))
        return x.square().sum()


class OfWritten(Layer):
    """As Longformer has it: tokens with global attention are written into the mask that it then asks."""

    def forward(self, x, labels):
        h, mask = self.fc(x), torch.where(labels > 0, 0.0, -1.0)[None][0]
        mask[labels == 3] = 8.0
        mask.mul_(0.5)
        return h.square().sum() if (mask > 0).any().item() else h.sum()


class OfRows(Layer):
    def forward(self, x, labels):
        counts = torch.zeros(2, 3, dtype=torch.long)
        counts[1:, 1:] = labels[:2]
        counts += labels[:3]
        return self.fc(x).square().sum() if (counts[:, 2] > 2).all() else self.fc(x).sum()


class Counted(Layer):
    """As torch_geometric's to_dense_batch has it: a call that wrote into a tensor of it was not known."""

    def forward(self, x, labels):
        counts = labels.new_zeros(6).scatter_add_(0, labels, torch.ones_like(labels))
        h = self.fc(x)
        return sum(h[labels == label].sum(0).square().sum() for label in range(int(counts.max())))


class WrittenItself(Layer):
    def forward(self, x, labels):
        own = labels.clone()
        own[own > 2] = 0
        own += labels[:1]
        for _ in range(own[2].item()):
            x = self.fc(x).tanh()
        return x.square().sum()


class OfTimes(Layer):
    def forward(self, x, labels):
        times = torch.linspace(0, 1, labels.shape[0], dtype=x.dtype)
        return self.fc(x * times[:, None]).square().sum() if (times[1:] > times[:-1]).all() else x.sum()


CALLS = ([1, 2, 3, 1, 0, 2], [2, 1, 2, 0, 2, 2], [0, 1, 2, 3, 4, 5], [1, 1, 3, 2, 3, 0])


@pytest.mark.parametrize(
    "make, graphs",
    [
        (Repeated, 3),
        (EachLabel, 3),
        (EachUnique, 3),
        (Branch, 2),
        (OfSizes, 1),
        (Compared, 2),
        (OfBuffer, 2),
        (Split, 1),
        (OfTable, 4),
        (OfWritten, 2),
        (OfRows, 2),
        (Counted, 3),
        (WrittenItself, 3),
        (OfTimes, 1),
    ],
)
def test_a_graph_for_each_answer(make, graphs):
    models, agents = pair(make), set()
    for labels in (*CALLS, *CALLS):
        step(models, labels)
        assert models[1].fallback_reason is None
        agents.add(models[1]._training_manager.last_agent)
    assert len(agents) == graphs


def test_a_loop_of_many_times_is_no_graph():
    models = pair(Repeated)
    with pytest.warns(match="branches on data"):
        step(models, [64, 1])


class Written(Layer):
    def forward(self, x, labels):
        labels = labels.clone()
        labels[0] = (self.fc(x).detach().sum() > 0).long()
        return self.fc(x).square().sum() if labels[0] == 1 else self.fc(x).sum()


class WrittenView(Layer):
    def forward(self, x, labels):
        first = labels[:1]
        labels += (self.fc(x).detach().sum() > 0).long()
        return self.fc(x).square().sum() if first.item() == 1 else self.fc(x).sum()


class WrittenThroughView(Layer):
    def forward(self, x, labels):
        labels = labels.clone()
        labels.view(-1)[:1].add_(1)
        return self.fc(x).square().sum() if labels[0] == 1 else self.fc(x).sum()


class DrawnInto(Layer):
    def forward(self, x, labels):
        drawn = labels.clone()
        drawn.random_(0, 2)
        return self.fc(x).square().sum() if drawn[0] == 1 else self.fc(x).sum()


class Drawn(Layer):
    def forward(self, x, labels):
        drawn = torch.randint_like(labels, 2)
        return self.fc(x).square().sum() if drawn[0] == 1 else self.fc(x).sum()


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
@pytest.mark.parametrize("make", [Written, WrittenView, WrittenThroughView, Drawn, DrawnInto])
def test_what_is_no_argument_alone_is_no_question(make):
    """It is another one while forward runs than before the call."""
    models = pair(make)
    for _ in range(6):
        step(models, [0, 0, 0])
    assert models[1].fallback_reason is not None


class Crops(Layer):
    """As DINO has them: those of one size are one batch."""

    def forward(self, crops):
        sizes = torch.tensor([crop.shape[-2] for crop in crops])
        start, found = 0, torch.empty(0).to(crops[0])
        for end in torch.unique_consecutive(sizes, return_counts=True)[1].cumsum(0):
            found = torch.cat([found, self.fc(torch.cat(crops[start:end])).tanh().mean((1, 2))])
            start = end
        return found.square().sum()


def test_crops_of_several_sizes_are_exported_once():
    models, agents = pair(Crops), set()
    for batch, counts in ((2, (2, 3)), (2, (2, 3)), (3, (2, 3)), (2, (2, 4)), (2, (2, 3))):
        crops = [
            torch.randn(batch, 3, size, 8, dtype=torch.float64)
            for size, count in zip((6, 4), counts, strict=True)
            for _ in range(count)
        ]
        found = []
        for each in models:
            each.zero_grad()
            loss = each(crops)
            loss.backward()
            found.append([loss.detach(), [parameter.grad for parameter in each.parameters()]])
        torch.testing.assert_close(*found)
        assert models[1].fallback_reason is None
        agents.add(models[1]._training_manager.last_agent)
    assert len(agents) == 2


def pair(make):
    model = make().double()
    return model, ORTModule(copy.deepcopy(model))


def step(models, labels):
    x, found, seed = torch.randn(len(labels), 8, dtype=torch.float64), [], torch.initial_seed()
    for each in models:
        each.zero_grad()
        torch.manual_seed(seed + x.numel())
        given = torch.tensor(labels)
        loss = each(x, given)
        loss.backward()
        found.append([loss.detach(), given, [parameter.grad for parameter in each.parameters()]])
    torch.manual_seed(int(x.abs().sum() * 1e6))
    torch.testing.assert_close(*found)
