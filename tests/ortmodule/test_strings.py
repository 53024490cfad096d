"""Strings among the arguments: of any value where forward does not read them, else part of the graph. Those in
containers are taken for unread from the first call on, the others once they change."""

import copy

import pytest
import torch
from modules import Of, assert_same, step, x

from lowtide.ortmodule import ORTModule


def transitions(function, batches, make=Of):
    """Of calls with these batches, whose results are PyTorch's."""
    module = make(function)
    wrapped = ORTModule(copy.deepcopy(module))
    for batch in batches:
        expected, found = step(module, (batch,)), step(wrapped, (batch,))
        assert wrapped.fallback_reason is None
        assert_same(found, expected)
        assert plain(wrapped(batch)) == plain(module(batch))
    ((_, counts),) = wrapped.transition_counts().items()
    return counts


def plain(output):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(output) if not isinstance(leaf, torch.Tensor)]


def named(index):
    """Two samples with the names of their files."""
    return {"x": x(2 + index % 2, 4), "names": [f"{index}.png", f"{index}b.png"], "split": "train"}


def carries(m, batch):
    names = copy.deepcopy(dict(batch)["names"])
    if batch is None or not isinstance(names[0], str) or names[1] is None:
        return m.l(batch["x"]).sin()
    return m.l(batch["x"])


def returns_the_batch(m, batch):
    return {**batch, "y": m.l(batch["x"]), "first": batch["names"][0]}


class Tagged(torch.nn.Module):
    """Asks for the class of what it gets; that of a name makes no difference."""

    def __init__(self, function):
        super().__init__()
        self.l = torch.nn.Linear(4, 4)
        self.function = function

    def forward(self, batch):
        return self.function(self, {key: value for key, value in batch.items() if type(key) is str})


@pytest.mark.parametrize("function", [carries, returns_the_batch])
def test_strings_that_forward_never_reads_take_one_export(function):
    assert transitions(function, [named(index) for index in range(12)]) == {"first call": 1}


@pytest.mark.long
def test_strings_beside_code_that_asks_for_classes():
    batches = [named(index) for index in range(3)]
    assert transitions(returns_the_batch, batches, Tagged) == {"first call": 1}


def test_a_string_that_is_an_argument_itself_takes_two_exports():
    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.l = torch.nn.Linear(4, 4)

        def forward(self, x, name):
            return {"y": self.l(x), "name": name}

    module = Named()
    wrapped = ORTModule(copy.deepcopy(module))
    for index in range(5):
        expected, found = module(x(3, 4), f"{index}.png"), wrapped(x(3, 4), name=f"{index}.png")
        assert found["name"] == expected["name"]
        torch.testing.assert_close(found["y"], expected["y"])
    ((_, counts),) = wrapped.transition_counts().items()
    assert counts == {"first call": 1, "string": 1}


def test_a_module_that_has_no_graph_is_exported_once_whatever_its_strings_are():
    def function(m, batch):
        return m.l(batch["x"]) * (2 if batch["x"].sum() > 0 else 1)

    wrapped = ORTModule(Of(function))
    for index in range(4):
        wrapped(named(index))
    assert wrapped.transition_counts() == {"in training mode": {"refused": 1}}


def test_strings_and_numbers_that_change_together():
    def function(m, batch):
        return m.l(batch["x"]) * batch["weight"]

    batches = [{**named(index), "weight": 0.5 + index} for index in range(6)]
    assert transitions(function, batches) == {"first call": 1, "number": 1}


READERS = {
    "compares": lambda m, batch: m.l(batch["x"]) * (2 if batch["names"][0] == "1.png" else 1),
    "looks up": lambda m, batch: m.l(batch["x"]) * {"1.png": 2}.get(batch["names"][0], 1),
    "measures": lambda m, batch: m.l(batch["x"]) * len(batch["names"][0]),
    "formats": lambda m, batch: m.l(batch["x"]) * len(f"{batch['names'][0]}"),
    "asks for its class": lambda m, batch: m.l(batch["x"]) * (2 if type(batch["names"][0]) is str else 1),
    "asks a method": lambda m, batch: m.l(batch["x"]) * batch["names"][0].count("1"),
    "finds in it": lambda m, batch: m.l(batch["x"]) * (2 if "1" in batch["names"][0] else 1),
    "tries to": lambda m, batch: m.l(batch["x"]) * tried(batch["names"][0]),
    "joins": lambda m, batch: m.l(batch["x"]) * len("".join(batch["names"])),
}


def tried(name):
    try:
        return int(name[0])
    except Exception:
        return 1


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(function, id=name, marks=[] if name == "compares" else pytest.mark.long)
        for name, function in READERS.items()
    ],
)
def test_strings_that_forward_reads_stay_constants(function):
    batches = [named(index) for index in (0, 1, 2, 1)]
    assert transitions(function, batches) == {"first call": 1, "argument": 2}


def test_numbers_become_inputs_where_strings_are_read():
    def function(m, batch):
        return m.l(batch["x"]) * batch["weight"] * (2 if batch["mode"] == "hard" else 1)

    batches = [{"x": x(), "weight": 0.5 + index, "mode": "hard" if index % 2 else "soft"} for index in range(6)]
    counts = transitions(function, batches)
    assert sum(counts.values()) <= 4, counts
