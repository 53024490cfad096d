"""What forward asks a tensor and only Python knows: its type, its text; and questions about data beside other sizes."""

import copy

import pytest
import torch
from modules import of, x

from lowtide.ortmodule import ORTModule


def by_place(m, a, which):
    return [torch.tanh, torch.relu, torch.sin][which[0]](m.l(a))


def by_branch(m, a, which):
    return m.l(a) * 2 if which[0] > 1 else m.l(a).square()


def by_count(m, a, which):
    return sum(m.l(a) * step for step in range(1, 2 + which[0].item()))


@pytest.mark.parametrize("function", [by_place, by_branch, by_count])
def test_another_answer_beside_sizes_that_are_no_longer_the_same(function):
    """The first call has as many rows as `which` has numbers."""
    module = of(function)
    wrapped = ORTModule(copy.deepcopy(module))
    for rows, first in ((3, 1), (4, 2), (5, 1), (5, 2), (3, 2)):
        given = x(rows, 4).double(), torch.tensor([first, 0, 0])
        torch.testing.assert_close(wrapped(*given), module(*given))
    assert wrapped.fallback_reason is None
    exports = wrapped.transition_counts()["in training mode"]
    assert exports["first call"] == exports["sizes"] == 1 and exports["question"] <= 2


TYPES = {
    "is": lambda m, a: m.l(a) * (2 if type(a) is torch.Tensor else 3),
    "in": lambda m, a: m.l(a) * (2 if type(a) in (list, torch.Tensor) else 3),
    "a parameter": lambda m, a: m.l(a) * (2 if type(m.l.weight) is torch.nn.Parameter else 3),
    "its class": lambda m, a: m.l(a) * (2 if a.__class__ == torch.Tensor else 3),
}
TEXTS = {
    "repr": lambda m, a: m.l(a) * len(repr(a)),
    "format": lambda m, a: m.l(a) * len(f"{a}"),
    "str of several": lambda m, a: m.l(a) * len(str([a, a])),
    "of a sum": lambda m, a: m.l(a) * len(f"{a.sum()}"),
}


def run(function):
    module = of(function)
    wrapped = ORTModule(copy.deepcopy(module))
    for rows in (2, 3):
        given = x(rows, 4).double()
        torch.testing.assert_close(wrapped(given), module(given))
    return wrapped.fallback_reason


@pytest.mark.parametrize("name", TYPES)
def test_their_types(name, monkeypatch):
    monkeypatch.setenv("LOWTIDE_PIECES", "1")
    assert "forward asks by type() whether something is a tensor" in run(TYPES[name])


@pytest.mark.parametrize("name", TEXTS)
def test_their_texts(name, monkeypatch):
    monkeypatch.setenv("LOWTIDE_PIECES", "1")
    assert "forward makes a text of a tensor" in run(TEXTS[name])


def test_a_class_that_takes_tensors_is_no_question():
    assert run(lambda m, a: m.l(a) * (2 if isinstance(a, torch.Tensor) else 3)) is None
