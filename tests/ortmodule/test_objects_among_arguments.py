"""Objects, dicts and lists among the arguments are inputs of one graph. What forward puts into them is there after each
call, and where it returns one of them, the caller's own is returned. (Objects ran in pieces, as did what forward puts
into a dict; what it put into a dataclass was lost.)"""

import collections
import copy
import dataclasses
import types
import weakref

import pytest
import torch

from lowtide.guards.sameness import attributes_of
from lowtide.ortmodule import ORTModule


class Batch:
    def __init__(self, x, mask):
        self.x, self.mask = x, mask
        self.kind, self.inner = "dense", None

    def masked(self):
        return self.x * self.mask


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    mask: torch.Tensor
    count: int = 3


class WithSlots:
    __slots__ = ("hidden", "loss", "mask", "seen", "x")

    def __init__(self, x, mask):
        self.x, self.mask = x, mask


class Between(WithSlots):
    """With a __dict__ for what else there is."""

    def __init__(self, x, mask):
        super().__init__(x, mask)
        self.kind = "dense"


@dataclasses.dataclass(slots=True)
class RecordWithSlots:
    x: torch.Tensor
    mask: torch.Tensor
    count: int = 3


class Reading(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 8)

    def get(self, batch, name):
        return batch[name] if isinstance(batch, collections.abc.Mapping) else getattr(batch, name)

    def put(self, batch, name, value):
        if isinstance(batch, collections.abc.Mapping):
            batch[name] = value
        else:
            setattr(batch, name, value)

    def forward(self, batch):
        return (self.fc(self.get(batch, "x")) * self.get(batch, "mask")).square().mean()


class Adding(Reading):
    def forward(self, batch):
        hidden = self.fc(self.get(batch, "x")).tanh()
        self.put(batch, "hidden", hidden)
        self.put(batch, "mask", self.get(batch, "mask") + 1)
        self.put(batch, "seen", True)
        return (hidden * self.get(batch, "mask")).square().mean()


class Returning(Adding):
    def forward(self, batch):
        self.put(batch, "loss", super().forward(batch))
        return batch


class Nesting(Adding):
    def forward(self, batch):
        return super().forward(batch), {"batch": batch}


KINDS = {
    "object": Batch,
    "namespace": lambda x, mask: types.SimpleNamespace(x=x, mask=mask),
    "dataclass": Record,
    "slots": WithSlots,
    "slots and more": Between,
    "dict": lambda x, mask: {"x": x, "mask": mask},
    "user_dict": lambda x, mask: collections.UserDict(x=x, mask=mask),
}


def content(batch):
    return dict(batch) if isinstance(batch, collections.abc.Mapping) else attributes_of(batch)


def compare(model, make, loss, steps=4):
    models, results, agents = (model, ORTModule(copy.deepcopy(model))), [], set()
    for step in range(steps):
        x, mask = torch.randn(4 + step % 2, 8, dtype=torch.float64), torch.rand(4 + step % 2, 8, dtype=torch.float64)
        for each in models:
            batch = make(x.clone(), mask.clone())
            each.zero_grad()
            output = each(batch)
            loss(output, batch).backward()
            results.append([content(batch), [parameter.grad for parameter in each.parameters()]])
        torch.testing.assert_close(*([each[1], _tensors(each[0])] for each in results[-2:]))
        assert _others(results[-1][0]) == _others(results[-2][0])
        agents.add(models[1]._training_manager.last_agent)
    assert models[1].fallback_reason is None
    assert len(agents) == 1


def _tensors(items):
    return {key: value for key, value in items.items() if isinstance(value, torch.Tensor)}


def _others(items):
    return {key: value for key, value in items.items() if not isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", [Reading, Adding])
def test_one_graph_and_the_same_after_it(model, kind):
    compare(model().double(), KINDS[kind], lambda output, batch: output)


@pytest.mark.parametrize("kind", KINDS)
def test_the_callers_own_is_returned(kind):
    def loss(output, batch):
        assert output is batch
        return content(batch)["loss"]

    compare(Returning().double(), KINDS[kind], loss)


def test_a_dataclass_with_slots():
    compare(Reading().double(), RecordWithSlots, lambda output, batch: output)


@pytest.mark.parametrize("kind", ["object", "slots", "dict"])
def test_the_callers_own_is_in_what_is_returned(kind):
    def loss(output, batch):
        assert output[1]["batch"] is batch
        return output[0] + content(batch)["hidden"].sum()

    compare(Nesting().double(), KINDS[kind], loss)


def test_methods_and_objects_in_objects():
    class Model(Reading):
        def forward(self, batch):
            return self.fc(batch.inner.masked()).square().mean() + batch.x.mean()

    def make(x, mask):
        batch = Batch(x, mask)
        batch.inner = Batch(x + 1, mask)
        return batch

    model = Model().double()
    models, found = (model, ORTModule(copy.deepcopy(model))), []
    batch = make(torch.randn(4, 8, dtype=torch.float64), torch.rand(4, 8, dtype=torch.float64))
    for each in models:
        each(batch).backward()
        found.append([parameter.grad for parameter in each.parameters()])
    torch.testing.assert_close(*found)
    assert models[1].fallback_reason is None


def test_lists_and_entries_that_go():
    class Model(Reading):
        def forward(self, batch):
            x = batch.pop("x")
            batch["parts"].append(self.fc(x))
            batch["parts"][0] = batch["parts"][0] * 2
            return (batch["parts"][-1] * batch["parts"][0]).square().mean()

    model = Model().double()
    models, found = (model, ORTModule(copy.deepcopy(model))), []
    for _ in range(2):
        x, mask = torch.randn(4, 8, dtype=torch.float64), torch.rand(4, 8, dtype=torch.float64)
        for each in models:
            parts = [mask]
            batch = {"x": x, "parts": parts}
            each(batch).backward()
            assert batch == {"parts": parts} and len(parts) == 2
            found.append([parts, [parameter.grad for parameter in each.parameters()]])
        torch.testing.assert_close(*found[-2:])
    assert models[1].fallback_reason is None


def test_what_leads_back_to_itself_is_no_tree():
    batch = Batch(torch.randn(4, 8, dtype=torch.float64), torch.rand(4, 8, dtype=torch.float64))
    batch.inner = batch
    model = Reading().double()
    models = model, ORTModule(copy.deepcopy(model))
    torch.testing.assert_close(*(each(batch) for each in models))


class Store(collections.abc.MutableMapping):
    def __init__(self, items):
        self.items_of_it, self.owner = dict(items), None

    def __getitem__(self, key):
        return self.items_of_it[key]

    def __setitem__(self, key, value):
        self.items_of_it[key] = value

    def __delitem__(self, key):
        del self.items_of_it[key]

    def __iter__(self):
        return iter(self.items_of_it)

    def __len__(self):
        return len(self.items_of_it)


class Graph:
    """As those of torch_geometric: a store that knows its graph."""

    def __init__(self, x, mask):
        self.store = Store({"x": x, "mask": mask})
        self.store.owner = weakref.ref(self)

    def __call__(self, name):
        return self.store.owner().store[name]


class OfGraph(Reading):
    def forward(self, graph):
        graph.store["hidden"] = self.fc(graph("x"))
        return (graph("hidden") * graph.store["mask"]).square().mean()


def test_a_part_may_know_the_object_that_it_is_of():
    model = OfGraph().double()
    models, found = (model, ORTModule(copy.deepcopy(model))), []
    for rows in (4, 6):
        x, mask = torch.randn(rows, 8, dtype=torch.float64), torch.rand(rows, 8, dtype=torch.float64)
        for each in models:
            graph = Graph(x, mask)
            each(graph).backward()
            assert graph.store.owner() is graph and list(graph.store) == ["x", "mask", "hidden"]
            found.append([graph("hidden"), [parameter.grad for parameter in each.parameters()]])
        torch.testing.assert_close(*found[-2:])
        assert models[1].fallback_reason is None


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_one_object_under_two_names_is_changed_under_both():
    class Model(Reading):
        def forward(self, first, second):
            first.x = self.fc(first.x)
            return (second.x * second.mask).square().mean()

    model = Model().double()
    models, found = (model, ORTModule(copy.deepcopy(model))), []
    x, mask = torch.randn(4, 8, dtype=torch.float64), torch.rand(4, 8, dtype=torch.float64)
    for each in models:
        batch = Batch(x, mask)
        each(batch, batch).backward()
        found.append([batch.x, [parameter.grad for parameter in each.parameters()]])
    torch.testing.assert_close(*found)
