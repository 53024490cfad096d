"""Other sizes than the first call's: one export, and results right at each."""

import copy

import pytest
import torch
import zoo
from compare import distances

from lowtide.ortmodule import ORTModule

IN_CI = ("gpt2", "t5")
LANGUAGE = ("gpt2", "t5", "bert", "llama", "mixtral")
LENGTHS = (16, 9, 24, 8, 33, 12)


@pytest.fixture
def exports(monkeypatch):
    """The exports so far."""
    seen = []
    export = torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda *args, **kwargs: seen.append(args) or export(*args, **kwargs))
    return seen


def check(wrapped, eager, batch):
    results = []
    for module in (wrapped, eager):
        module.zero_grad()
        loss = module(**batch).loss
        loss.backward()
        results.append((loss, {name: p.grad for name, p in module.named_parameters()}))
    assert wrapped.fallback_reason is None
    (found, ours), (expected, theirs) = results
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    for parameter, distance in distances([ours], [theirs]).items():
        assert distance <= 1e-4, f"{parameter}: {distance:.1e}"


@pytest.mark.parametrize(
    "name", [name if name in IN_CI else pytest.param(name, marks=pytest.mark.long) for name in LANGUAGE]
)
def test_six_lengths_then_a_smaller_batch_then_one_row(name, exports):
    model, make_batch = zoo.build(name)
    wrapped, eager = ORTModule(copy.deepcopy(model)), model
    for length in LENGTHS:
        check(wrapped, eager, make_batch(batch=4, length=length, seed=length))
    check(wrapped, eager, make_batch(batch=3, length=16, seed=1))
    assert len(exports) == 1
    # transformers itself asks whether a causal model's batch has one row, and then builds another mask.
    check(wrapped, eager, make_batch(batch=1, length=16, seed=2))
    check(wrapped, eager, make_batch(batch=1, length=7, seed=2))
    check(wrapped, eager, make_batch(batch=4, length=16, seed=3))
    assert len(exports) <= 2


@pytest.mark.parametrize("name", ["bert", pytest.param("vit", marks=pytest.mark.long)])
def test_the_first_batch_has_one_row(name, exports):
    model, make_batch = zoo.build(name)
    wrapped, eager = ORTModule(copy.deepcopy(model)), model
    for batch, length in ((1, 16), (3, 16), (2, 7), (1, 5)):
        check(wrapped, eager, make_batch(batch=batch, length=length, seed=batch))
    assert len(exports) <= 2


def test_length_equal_to_batch(exports):
    model, make_batch = zoo.build("gpt2")
    wrapped, eager = ORTModule(copy.deepcopy(model)), model
    for batch, length in ((8, 8), (8, 5), (3, 8)):
        check(wrapped, eager, make_batch(batch=batch, length=length, seed=length))
    assert len(exports) == 1
