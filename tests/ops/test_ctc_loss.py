"""Connectionist temporal classification beside eager, natively."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lowtide.ortmodule import ORTModule

STEPS, CLASSES, READ, LENGTHS = 23, 9, (23, 17, 20, 1), (6, 0, 9, 1)


def labels(form, dtype=torch.int64, lengths=LENGTHS):
    """Some classes stand twice in a row."""
    padded = torch.randint(1, 4, (len(lengths), 10), generator=torch.Generator().manual_seed(2)).to(dtype)
    return padded if form == "padded" else torch.cat([row[:n] for row, n in zip(padded, lengths, strict=True)])


class Speech(nn.Module):
    """The log-probabilities are a view of batches first, and a result, with a gradient from elsewhere too."""

    def __init__(self, dtype=torch.float64, normalise=True, **terms):
        super().__init__()
        self.linear = nn.Linear(5, CLASSES, dtype=dtype)
        self.normalise, self.terms = normalise, terms

    def forward(self, x, targets, read, lengths):
        scores = self.linear(x)
        likely = (scores.log_softmax(-1) if self.normalise else scores).transpose(0, 1)
        return F.ctc_loss(likely, targets, read, lengths, **self.terms), likely


def same_steps(module, *arguments, batch=4):
    """Both of two batches; returns the wrapper."""
    engine = ORTModule(copy.deepcopy(module))
    dtype = module.linear.weight.dtype
    tolerance = {"rtol": 1e-9, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 2e-4, "atol": 2e-5}
    for seed in range(2):
        leaf = torch.randn(batch, STEPS, 5, dtype=dtype, generator=torch.Generator().manual_seed(seed))
        found = []
        for each in (module, engine):
            each.zero_grad()
            x = leaf.clone().requires_grad_()
            loss, likely = each(x, *arguments)
            loss = (loss * torch.arange(1, loss.numel() + 1).view(loss.shape)).sum()
            (loss + (likely[0] ** 2).mean()).backward()
            found.append([loss, x.grad, *(parameter.grad for parameter in each.parameters())])
        assert engine.fallback_reason is None
        for theirs, ours in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, equal_nan=True, **tolerance)
    assert "aten::" not in engine.text("program") and "CtcLossGrad" in engine.text("program")
    return engine


CASES = [
    ("padded", torch.float64, "mean", torch.int64),
    ("padded", torch.float32, "none", torch.int32),
    ("in a row", torch.float64, "sum", torch.int32),
    ("in a row", torch.float32, "mean", torch.int64),
    ("in a row", torch.float64, "none", torch.int64),
]


@pytest.mark.parametrize(("form", "dtype", "reduction", "index"), CASES)
def test_loss_and_gradients(form, dtype, reduction, index):
    module = Speech(dtype, reduction=reduction)
    same_steps(module, labels(form, index), torch.tensor(READ), torch.tensor(LENGTHS, dtype=torch.int32))


@pytest.mark.parametrize(("form", "zero_infinity"), [*itertools.product(("padded", "in a row"), (True, False))])
def test_targets_without_a_path(form, zero_infinity):
    """The third's 9 classes need more steps than 8; of no step nothing but no target is made."""
    lengths, read = (2, 0, 9, 1), (23, 0, 8, 0)
    module = Speech(reduction="none", zero_infinity=zero_infinity)
    same_steps(module, labels(form, lengths=lengths), torch.tensor(read), torch.tensor(lengths))


def test_lengths_in_lists_and_another_blank():
    same_steps(Speech(blank=CLASSES - 1), labels("in a row"), READ, list(LENGTHS))


def test_scores_that_are_no_log_probabilities():
    """PyTorch's gradient takes them to be such."""
    same_steps(Speech(normalise=False), labels("padded"), torch.tensor(READ), torch.tensor(LENGTHS))


@pytest.mark.parametrize("factor", [1e2, 1e5])
def test_scores_whose_probabilities_are_0_in_doubles(factor):
    """exp(-1000) of them, and their exponentials where they are no log-probabilities."""
    for normalise in (True, False):
        module = Speech(normalise=normalise, reduction="sum")
        with torch.no_grad():
            module.linear.weight.mul_(factor)
        same_steps(module, labels("padded"), torch.tensor(READ), torch.tensor(LENGTHS))


class OneSpeech(Speech):
    def forward(self, x, targets, read, lengths):
        return F.ctc_loss(self.linear(x[0]).log_softmax(-1), targets, read, lengths, **self.terms), x


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_one_sequence_without_a_batch(reduction):
    same_steps(OneSpeech(reduction=reduction), torch.tensor([1, 2, 2]), torch.tensor(STEPS), torch.tensor(3), batch=1)


WRONG = {
    "input length is negative or above": {"read": torch.tensor([STEPS + 1, 17, 20, 1])},
    "target length is above": {"lengths": torch.tensor([11, 0, 9, 1])},
    "target length is negative": {"lengths": torch.tensor([-1, 0, 9, 1])},
    "a target is no class": {"targets": labels("padded") + CLASSES},
    "do not add up": {"targets": labels("in a row"), "lengths": torch.tensor([6, 0, 9, 0])},
}


@pytest.mark.parametrize("message", WRONG)
def test_lengths_and_targets_that_are_none_are_refused(message):
    engine = ORTModule(Speech())
    arguments = {"targets": labels("padded"), "read": torch.tensor(READ), "lengths": torch.tensor(LENGTHS)}
    with pytest.raises(Exception, match=message):
        engine(torch.randn(len(READ), STEPS, 5, dtype=torch.float64), **arguments | WRONG[message])


def test_long_transcripts_in_float32_are_as_in_float64():
    """PyTorch adds their paths up in float32: 6e-4 of its gradient is rounding here."""
    generator = torch.Generator().manual_seed(0)
    scores, targets = torch.randn(400, 2, 32, generator=generator), torch.randint(1, 32, (2, 80), generator=generator)
    lengths = torch.tensor([400, 380]), torch.tensor([80, 75])

    class Loss(nn.Module):
        def forward(self, x):
            return F.ctc_loss(x.log_softmax(-1), targets, *lengths)

    exact, found = scores.double().requires_grad_(), scores.clone().requires_grad_()
    Loss()(exact).backward()
    loss = ORTModule(Loss())(found)
    loss.backward()
    torch.testing.assert_close(found.grad.double(), exact.grad, rtol=0, atol=2e-6 * exact.grad.abs().max().item())
