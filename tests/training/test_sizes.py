"""Other sizes than the first call's: one export, and results right at each."""

import copy

import pytest
import torch
import zoo
from compare import distances, rounded_gradients
from transformers import BertConfig, BertForQuestionAnswering

from lowtide.ortmodule import ORTModule

IN_CI = ("gpt2",)
LANGUAGE = ("gpt2", "t5", "bert", "llama", "mixtral")
LENGTHS = (16, 9, 24, 8, 33, 12)


@pytest.fixture
def exports(monkeypatch):
    """The exports so far."""
    seen = []
    export = torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda *args, **kwargs: seen.append(args) or export(*args, **kwargs))
    return seen


@pytest.fixture
def check(request):
    """Compares a step of a wrapped model with eager's, on a batch of these sizes."""
    eager, make_batch = zoo.build(request.param)
    exact, make_exact_batch = zoo.build(request.param, dtype=torch.float64)
    exact.load_state_dict(eager.state_dict())
    wrapped = ORTModule(copy.deepcopy(eager))

    def step(module, batch):
        module.zero_grad()
        loss = module(**batch).loss
        loss.backward()
        return loss, [{name: p.grad for name, p in module.named_parameters()}]

    def check(**sizes):
        found, ours = step(wrapped, make_batch(**sizes))
        expected, theirs = step(eager, make_batch(**sizes))
        assert wrapped.fallback_reason is None
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
        # Where the true gradient is zero (the bias of an attention's keys), eager's is rounding too.
        batch = make_exact_batch(**sizes)
        rounding = distances(rounded_gradients(exact, [batch]), step(exact, batch)[1])
        for parameter, distance in distances(ours, theirs).items():
            assert distance <= max(1e-4, 6 * rounding[parameter]), f"{parameter}: {distance:.1e}"

    return check


@pytest.mark.parametrize(
    "check",
    [name if name in IN_CI else pytest.param(name, marks=pytest.mark.long) for name in LANGUAGE],
    indirect=True,
)
def test_six_lengths_then_a_smaller_batch_then_one_row(check, exports):
    for length in LENGTHS:
        check(batch=4, length=length, seed=length)
    check(batch=3, length=16, seed=1)
    assert len(exports) == 1
    # transformers itself asks whether a causal model's batch has one row, and then builds another mask.
    check(batch=1, length=16, seed=2)
    check(batch=1, length=7, seed=2)
    check(batch=4, length=16, seed=3)
    assert len(exports) <= 2


@pytest.mark.parametrize("check", ["bert", pytest.param("vit", marks=pytest.mark.long)], indirect=True)
def test_the_first_batch_has_one_row(check, exports):
    for batch, length in ((1, 16), (3, 16), (2, 7), (1, 5)):
        check(batch=batch, length=length, seed=batch)
    assert len(exports) <= 2


@pytest.mark.parametrize("check", ["gpt2"], indirect=True)
def test_length_equal_to_batch(check, exports):
    for batch, length in ((8, 8), (8, 5), (3, 8)):
        check(batch=batch, length=length, seed=length)
    assert len(exports) == 1


def test_question_answering_ignores_a_position_that_is_a_size(monkeypatch, exports):
    """Positions past the end count for nothing: ignore_index is the sequence's length."""
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )
    eager = BertForQuestionAnswering(config)
    wrapped = ORTModule(copy.deepcopy(eager))
    for length in (12, 7):
        batch = {"input_ids": torch.randint(99, (3, length))}
        batch["start_positions"] = torch.tensor([1, length + 5, 2])
        batch["end_positions"] = torch.tensor([3, 4, length])
        found, expected = wrapped(**batch).loss, eager(**batch).loss
        torch.testing.assert_close(found, expected)
        for module, loss in ((wrapped, found), (eager, expected)):
            module.zero_grad()
            loss.backward()
        for (name, p), q in zip(eager.named_parameters(), wrapped.parameters(), strict=True):
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-6, msg=name)
    assert len(exports) == 1
