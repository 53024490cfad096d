"""Sizes that forward makes a text of: keys of a ModuleDict, words of a log."""

import copy
import json

import pytest
import torch
from cached import graphs
from modules import assert_same_state

from lowtide.compile_backend import lowtide
from lowtide.ortmodule import ORTModule


class Named(torch.nn.Module):
    """A layer for each number of columns that has a name, and one for the others."""

    def __init__(self, name):
        super().__init__()
        keys = ("5", "05", "6", "10", "(2, 5, 4)", "torch.Size([2, 6, 4])", "True", "2.5")
        self.named = torch.nn.ModuleDict({key.replace(".", "_"): torch.nn.Linear(4, 4) for key in keys})
        self.other, self.name = torch.nn.Linear(4, 4), name

    def forward(self, x):
        key = self.name(x).replace(".", "_")
        return (self.named[key] if key in self.named else self.other)(x).square().sum()


NAMES = {
    "str": lambda x: str(x.shape[1]),
    "f-string": lambda x: f"{x.shape[1]}",
    "with a width": lambda x: f"{x.shape[1]:02d}",
    "percent": lambda x: "%s" % x.shape[1],  # noqa: UP031
    "percent d": lambda x: "%02d" % x.shape[1],  # noqa: UP031
    "format": lambda x: "{}".format(x.size(1)),  # noqa: UP032
    "of a tuple": lambda x: str(tuple(x.shape)),
    "of all sizes": lambda x: repr(x.shape),
    "of a sum": lambda x: str(x.shape[1] + 5),
    "of a quotient": lambda x: str(x.shape[1] / 2),
    "of a condition": lambda x: str(x.shape[1] > 5),
    "of a place in a tensor": lambda x: f"{torch.arange(9)[5]}",
    "of each place": lambda x: "{:02d}".format([each for each in torch.arange(6)][5]),  # noqa: UP032
    "of a size in a tensor": lambda x: f"{torch.tensor(x.shape[1])}",
    "json": lambda x: json.dumps(x.shape[1]),
    "join": lambda x: "".join(map(str, [x.shape[1]])),
}


def assert_follows(wrapped, module, eager):
    for rows, columns in ((2, 5), (2, 6), (2, 7), (3, 5), (2, 5)):
        x = torch.randn(rows, columns, 4, dtype=torch.float64)
        losses = [run(x) for run in (wrapped, eager)]
        for loss in losses:
            loss.backward()
        torch.testing.assert_close(*losses, rtol=1e-10, atol=0)
        assert_same_state(module, eager)


@pytest.mark.parametrize("name", NAMES)
def test_a_text_is_that_of_the_calls_size(name):
    module = Named(NAMES[name]).double()
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    assert_follows(wrapped, module, eager)
    assert wrapped.fallback_reason is None


def test_through_torch_compile():
    module = Named(NAMES["f-string"]).double()
    eager = copy.deepcopy(module)
    assert_follows(torch.compile(module, backend=lowtide), module, eager)


def test_a_second_start_finds_the_graphs(folder, exports):
    module = Named(NAMES["str"]).double()
    for _ in range(2):
        module.zero_grad()
        assert_follows(ORTModule(module), module, copy.deepcopy(module))
    assert len(graphs(folder)) == len(exports)


def test_what_is_raised_tells_the_size():
    class Refuses(Named):
        def forward(self, x):
            if x.shape[1] > 6:
                raise ValueError(f"{x.shape[1]} columns of {tuple(x.shape)}")
            return super().forward(x)

    wrapped = ORTModule(Refuses(NAMES["str"]).double())
    wrapped(torch.randn(2, 5, 4, dtype=torch.float64))
    for columns in (7, 8):
        with pytest.raises(ValueError, match=rf"^{columns} columns of \(2, {columns}, 4\)$"):
            wrapped(torch.randn(2, columns, 4, dtype=torch.float64))
