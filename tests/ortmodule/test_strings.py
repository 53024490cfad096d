"""Strings among the arguments: constants at first, of any value once they change, unless forward reads them."""

import copy

import pytest
from modules import Of, assert_same, step, x

from lowtide.ortmodule import ORTModule


def transitions(function, batches):
    """Of calls with these batches, whose results are PyTorch's."""
    module = Of(function)
    wrapped = ORTModule(copy.deepcopy(module))
    for batch in batches:
        expected, found = step(module, (batch,)), step(wrapped, (batch,))
        assert wrapped.fallback_reason is None
        assert_same(found, expected)
    ((_, counts),) = wrapped.transition_counts().items()
    return counts


def named(index):
    """Two samples with the names of their files."""
    return {"x": x(2 + index % 2, 4), "names": [f"{index}.png", f"{index}b.png"], "split": "train"}


def carries(m, batch):
    names = dict(batch)["names"]
    if batch is None or not isinstance(names[0], str) or names[1] is None:
        return m.l(batch["x"]).sin()
    return m.l(batch["x"])


def test_strings_that_forward_never_reads_take_two_exports():
    assert transitions(carries, [named(index) for index in range(12)]) == {"first call": 1, "string": 1}


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
    "gives it back": lambda m, batch: {"y": m.l(batch["x"]), "name": batch["names"][0]},
}


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(function, id=name, marks=[] if name == "compares" else pytest.mark.long)
        for name, function in READERS.items()
    ],
)
def test_strings_that_forward_reads_stay_constants(function):
    batches = [named(index) for index in (0, 1, 2, 1)]
    assert transitions(function, batches) == {"first call": 1, "string": 1, "constant": 1, "argument": 2}


def test_numbers_become_inputs_where_strings_are_read():
    def function(m, batch):
        return m.l(batch["x"]) * batch["weight"] * (2 if batch["mode"] == "hard" else 1)

    batches = [{"x": x(), "weight": 0.5 + index, "mode": "hard" if index % 2 else "soft"} for index in range(6)]
    counts = transitions(function, batches)
    assert counts["constant"] == 1
    assert sum(counts.values()) - counts["constant"] <= 4
