"""Questions about sizes that only an empty input answers otherwise: the exporter answers them without a guard."""

import copy

import pytest
import torch
from modules import Of, assert_same, step, x

from lowtide.ortmodule import ORTModule

QUESTIONS = {
    "is the batch empty": lambda m, x: m.l(x) if x.shape[0] != 0 else x.sum(),
    "is there a row": lambda m, x: m.l(x) if x.shape[0] else x.sum(),
    "are there elements": lambda m, x: m.l(x) if x.numel() > 0 else x.sum(),
    "are there none": lambda m, x: x.sum() if x.numel() == 0 else m.l(x),
}


@pytest.mark.parametrize("function", QUESTIONS.values(), ids=QUESTIONS)
def test_an_empty_input_gets_its_own_answer(function):
    module = Of(function)
    wrapped = ORTModule(copy.deepcopy(module))
    for rows in (6, 1, 0, 3, 0):
        assert_same(step(wrapped, (x(rows, 4),)), step(module, (x(rows, 4),)))
        assert wrapped.fallback_reason is None
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1, "sizes": 1}}


def test_the_first_input_is_empty():
    module = Of(QUESTIONS["is the batch empty"])
    wrapped = ORTModule(copy.deepcopy(module))
    for rows in (0, 3):
        assert_same(step(wrapped, (x(rows, 4),)), step(module, (x(rows, 4),)))


def test_a_module_that_is_converted_to_what_it_is():
    """As routers of mixtures of experts do in each forward."""

    def function(m, x):
        m.router = m.router.to(torch.float32)
        return m.l(x) * m.router.float()(x).softmax(-1)

    module = Of(function, router=torch.nn.Linear(4, 4))
    wrapped = ORTModule(copy.deepcopy(module))
    for rows in (3, 5):
        assert_same(step(wrapped, (x(rows, 4),)), step(module, (x(rows, 4),)))
        assert wrapped.fallback_reason is None
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1}}
