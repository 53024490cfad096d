"""Rows without a label never reach the head: PyTorch's numbers, fewer rows, and a plan for the labels at hand."""

import copy
import logging

import pytest
import torch
from torch.nn import functional

from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule

CLASSES, WIDTH = 50, 16


class Tagger(torch.nn.Module):
    """A residual layer below the head; `cut`: the last position of each sequence predicts nothing."""

    def __init__(self, cut=False, dropout=0.0, **options):
        super().__init__()
        self.table = torch.nn.Embedding(CLASSES, WIDTH)
        self.mix = torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 40), torch.nn.Linear(40, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, CLASSES)
        self.dropout, self.cut, self.options = torch.nn.Dropout(dropout), cut, options

    def forward(self, ids, labels):
        x = self.table(ids)
        x = x + self.mix(x).cumsum(1)  # rows that need others
        x = self.norm(x + self.dropout(self.down(functional.gelu(self.up(x)))))
        logits = self.head(x)
        if self.cut:
            logits, labels = logits[:, :-1], labels[:, 1:]
        loss = functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), **self.options)
        return loss, logits


def batch(share=0.2, sequences=4, length=24, ignored=-100):
    generator = torch.Generator().manual_seed(sequences * length)
    ids = torch.randint(1, CLASSES, (sequences, length), generator=generator)
    chosen = torch.rand(ids.shape, generator=generator) < share
    return ids, ids.masked_fill(~chosen, ignored)


def wrap(net, keep=(0,), level=LogLevel.WARNING):
    return ORTModule(copy.deepcopy(net), DebugOptions(level), keep_outputs=keep)


def step(net, arguments):
    net.zero_grad()
    output = net(*arguments)
    loss = output if isinstance(output, torch.Tensor) else output[0]
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in net.named_parameters()}


def assert_near(found, expected):
    torch.testing.assert_close(found[0], expected[0], rtol=1e-9, atol=1e-9, equal_nan=True)
    for name, gradient in expected[1].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-9, atol=1e-9, msg=name)


def leaves_out(wrapped):
    return "size=labelled" in wrapped.text("training")


@pytest.mark.parametrize(
    "options",
    [{}, {"cut": True}, {"reduction": "sum"}, {"ignore_index": 0}, {"label_smoothing": 0.1}],
    ids=lambda options: "-".join(options) or "plain",
)
def test_numbers_are_pytorchs_at_every_density(options):
    net = Tagger(**options).double()
    wrapped = wrap(net)
    ignored = options.get("ignore_index", -100)
    for share in (0.2, 1.0, 0.0, 0.5):
        arguments = batch(share, ignored=ignored)
        assert_near(step(wrapped, arguments), step(net, arguments))
    arguments = batch(0.3, sequences=2, length=31, ignored=ignored)
    assert_near(step(wrapped, arguments), step(net, arguments))
    assert wrapped.fallback_reason is None and leaves_out(wrapped)


def test_a_batch_of_no_rows_has_no_padding():
    """Its rows could not be counted, which was a bug of ours in the log and the end of the graph."""
    net = Tagger(reduction="sum").double()
    wrapped = wrap(net)
    for sequences in (0, 4):
        arguments = batch(0.95, sequences)
        assert_near(step(wrapped, arguments), step(net, arguments))
        assert wrapped.fallback_reason is None
    assert not leaves_out(wrapped)


def test_the_fused_head_without_a_row():
    net = Tagger()
    wrapped = wrap(net)
    for share in (0.2, 0.0):
        found, expected = step(wrapped, batch(share)), step(net, batch(share))
        torch.testing.assert_close(found[0], expected[0], equal_nan=True)
        for name, gradient in expected[1].items():
            torch.testing.assert_close(found[1][name], gradient, rtol=1e-4, atol=1e-6, msg=name)
    assert "LinearCrossEntropyLoss" in wrapped.text("training")


def test_rows_are_left_out_down_to_where_rows_mix():
    wrapped = wrap(Tagger())
    step(wrapped, batch())
    text = wrapped.text("training")
    products = [line for line in text.splitlines() if "Gemm(" in line or "LinearCrossEntropyLoss(" in line]
    whole = [line for line in products if "ids_dim0*ids_dim1" in line]
    assert len(whole) == 2, whole  # of the layer below cumsum: its rows, and what flows into them
    assert "f32[labelled, 40]" in text


def test_dropout_keeps_what_it_keeps_on_all_rows(monkeypatch):
    net = Tagger(dropout=0.5).double()
    found = []
    for value in ("1", "0"):
        monkeypatch.setenv("ORTMODULE_ENABLE_SPARSE_OPTIMIZER", value)
        wrapped = wrap(net)
        torch.manual_seed(7)
        found.append(step(wrapped, batch()))
        assert leaves_out(wrapped) == (value == "1")
    assert_near(*found)


def test_a_plan_has_room_for_the_labels_at_hand():
    net = Tagger()
    net.head = torch.nn.Linear(WIDTH, 5000)
    net = net.double()  # in steps, so that logits are there
    wrapped, peaks = wrap(net), {}
    for share in (0.2, 1.0, 0.2):
        step(wrapped, batch(share))
        peaks.setdefault(share, set()).add(wrapped.memory_report()["planned_peak_bytes"])
    (sparse,), (dense,) = peaks.values()
    assert sparse < 0.5 * dense


def test_a_budget_holds_for_the_labels_at_hand():
    net = Tagger().double()
    wrapped = wrap(net)
    step(wrapped, batch(0.2))
    needed = wrapped.memory_report()["planned_peak_bytes"]
    within = ORTModule(copy.deepcopy(net), keep_outputs=(0,), memory_budget=needed)
    expected = step(wrapped, batch(0.2))
    assert_near(step(within, batch(0.2)), expected)
    assert within.memory_report()["planned_peak_bytes"] <= needed


def test_labels_that_all_count_change_nothing():
    wrapped = wrap(Tagger())
    step(wrapped, batch(1.0))
    assert not leaves_out(wrapped)


@pytest.mark.parametrize("variable", ["ORTMODULE_ENABLE_SPARSE_OPTIMIZER", "ORTMODULE_ENABLE_COMPUTE_OPTIMIZER"])
def test_switches(variable, monkeypatch, caplog):
    monkeypatch.setenv(variable, "0")
    wrapped = wrap(Tagger(), level=LogLevel.INFO)
    with caplog.at_level(logging.INFO, logger="lowtide"):
        step(wrapped, batch())
    assert not leaves_out(wrapped)
    assert "ORTMODULE_ENABLE_SPARSE_OPTIMIZER=1 leave" in caplog.text


def test_logits_that_are_returned_are_whole_and_the_log_says_what_would_help(caplog):
    net = Tagger()
    wrapped = wrap(net, keep=None, level=LogLevel.INFO)
    with caplog.at_level(logging.INFO, logger="lowtide"):
        _, logits = wrapped(*batch())
    torch.testing.assert_close(logits, net(*batch())[1])
    assert not leaves_out(wrapped)
    assert 'keep_outputs=("loss",)' in caplog.text


def test_rows_of_the_feature_table(caplog):
    step(wrap(Tagger()), batch())
    assert "FLOPReduction      :   ON " in caplog.text
    assert "- Label Sparsity Opt :   ON    :   [AUTO ENABLED] Input density: labels:" in caplog.text


def test_densities_are_printed(monkeypatch, caplog):
    monkeypatch.setenv("ORTMODULE_PRINT_INPUT_DENSITY", "1")
    net = Tagger()
    net.table = torch.nn.Embedding(CLASSES, WIDTH, padding_idx=0)
    wrapped = wrap(net, level=LogLevel.INFO)
    ids, labels = batch()
    ids[0, :6] = 0
    with caplog.at_level(logging.INFO, logger="lowtide"):
        step(wrapped, (ids, labels))
        step(wrapped, (ids, labels))
    (first, second) = (record.getMessage() for record in caplog.records if record.getMessage().startswith(">>>"))
    count = (labels != -100).sum().item()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in first.splitlines()[1:-1]]
    by_name = {row[2]: row for row in cells[1:]}
    assert cells[0][4:] == ["DENSITY", "VALID TOKENS", "TOTAL TOKENS", "VALID TOKENS/BATCH"]
    assert by_name["ids"][1:] == ["EMBED", "ids", "0", "93.75 %", "90", "96", "[18, 24, 24, 24]"]
    assert by_name["labels"][5] == str(count) and by_name["labels"][3] == "-100"
    assert first.endswith("<<<") and "|            1 |" in second
