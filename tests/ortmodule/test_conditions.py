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


def attention(m, x):
    """transformers' `is_causal = query.shape[2] > 1`: PyTorch takes no condition on sizes for the flag."""
    query = m.l(x)[None]
    return torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=query.shape[1] > 3)


def test_a_flag_of_attention_that_sizes_tell():
    module = Of(attention)
    wrapped = ORTModule(copy.deepcopy(module))
    for rows in (6, 2, 4, 3):
        assert_same(step(wrapped, (x(rows, 4),)), step(module, (x(rows, 4),)))
        assert wrapped.fallback_reason is None
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1, "sizes": 1}}


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


def rows_above(m, x):
    """A count from data, of which `1` has another way, as attention's of one query."""
    kept = m.l(x)[x[:, 0] > 0].reshape(1, -1, 4)
    return kept.cumsum(1) if kept.shape[1] > 1 else kept * 2


def rows_above_if_any(m, x):
    kept = m.l(x)[x[:, 0] > 0]
    return m.l(kept) if kept.shape[0] != 0 else x.sum() * m.l.weight


def counted(chosen, rows=6):
    found = x(rows, 4).abs()
    found[chosen:, 0] *= -1
    return found


@pytest.mark.parametrize("function", [rows_above, rows_above_if_any])
def test_counts_are_taken_for_neither_zero_nor_one(function):
    module = Of(function)
    wrapped = ORTModule(copy.deepcopy(module))
    few = 1 if function is rows_above else 0
    for chosen in (4, 6, few, 2):
        assert_same(step(wrapped, (counted(chosen),)), step(module, (counted(chosen),)))
        assert (wrapped.fallback_reason is not None) == (chosen == few)
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1}}


def test_counts_that_often_are_few_are_branches():
    module = Of(rows_above)
    wrapped = ORTModule(copy.deepcopy(module))
    for chosen in (1, 4, 1, 1, 1, 4, 1, 4):
        assert_same(step(wrapped, (counted(chosen),)), step(module, (counted(chosen),)))
    assert "branches on data" in wrapped.fallback_reason
    assert wrapped.transition_counts() == {"in training mode": {"first call": 2, "refused": 1}}
