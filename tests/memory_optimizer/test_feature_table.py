"""The feature table in the log: golden texts with numbers masked, what shows at which level, and only once."""

import logging
import re
from pathlib import Path

import pytest
import torch
import zoo

from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule
from lowtide.ortmodule.feature_table import Row, layout, memory_optimizer_row
from lowtide.ortmodule.options import MemoryOptions

HERE = Path(__file__).parent


def masked(text):
    """Versions and numbers as '#'; `+cpu` and the like go with the version."""
    return re.sub(r"\d+(,\d{3})*(\.\d+)*(\+\w+)?", "#", text)


def test_the_columns_are_ortmodules():
    plans = (HERE.parents[1] / "src" / "report" / "golden" / "ortmodule_plan_rows.txt").read_text()
    memory = MemoryOptions("Reshape+Where+BiasSoftmax+:1:-1,Cast+:1:-1")
    reduction = Row("FLOPReduction", True, "Reduce FLOPs by upstreaming shrinking-sized ops")
    table = layout(
        [
            Row("ATen Executor", True, "Dispatch ATen operators to ORT's ATen executor"),
            memory_optimizer_row(memory, {"rows": [{}], "row_lines": plans}),
            Row(
                "Compute Optimizer",
                True,
                "Enable/Disable with env ORTMODULE_ENABLE_COMPUTE_OPTIMIZER=1/0",
                [reduction],
            ),
            Row("ZeRO Stage3 Support", False, "Enable/Disable with env ORTMODULE_ENABLE_ZERO_STAGE3=1/0"),
        ]
    )
    assert "\n".join(table) + "\n" == (HERE / "ortmodule_table.txt").read_text()


def logged(caplog, level, steps=1, evaluate=False, prepare=lambda model: None):
    """The records of a tiny GPT-2's first steps."""
    model, make_batch = zoo.build("gpt2")
    prepare(model)
    wrapped = ORTModule(model, DebugOptions(level))
    with caplog.at_level(wrapped._options.python_level, logger="lowtide"):
        for length in range(16, 16 + steps):
            wrapped(**make_batch(length=length)).loss.backward()
        if evaluate:
            with torch.no_grad():
                wrapped(**make_batch())
    return [record for record in caplog.records if record.name == "lowtide"]


def tables(records, mode="training"):
    return [record for record in records if f"features ON/OFF for [{mode}] mode" in record.getMessage()]


def test_the_table_at_warning(caplog, capsys):
    records = logged(caplog, LogLevel.WARNING, steps=2, evaluate=True)
    (table,) = tables(records)
    assert table.levelno == logging.WARNING
    assert masked(table.getMessage()) == (HERE / "feature_table.txt").read_text()
    assert "Plan 1" not in table.getMessage() and records == [table]
    assert capsys.readouterr().out == ""


def test_plans_at_info_and_summaries_at_devinfo(caplog):
    records = logged(caplog, LogLevel.INFO, evaluate=True)
    (table,) = tables(records)
    (evaluation,) = tables(records, "inference")
    assert evaluation.levelno == logging.INFO and "Plan 1" not in evaluation.getMessage()
    text = table.getMessage()
    heading, first = (line for line in text.splitlines() if "Freq    Saving(B)" in line or "   - Plan 1 " in line)
    assert heading.index("Config") == first.index("Gemm+:1:-1") == 38
    assert "Other overhead details:  lower takes" in text
    assert "Note 1: use comma to enable multiple plans at the same time." in text
    assert text.endswith("symbolic dim values:\n  input_ids_dim0=2,\n  input_ids_dim1=16,\n\n" + "*" * 72 + "\n")
    caplog.clear()
    records = logged(caplog, LogLevel.DEVINFO)
    (table,) = tables(records)
    (summaries,) = (record for record in records if "MemoryInsight Summary" in record.getMessage())
    assert "- Plan 1" in table.getMessage() and summaries.levelno == logging.INFO
    assert "MemoryInsight Summary - User config: not provided" in summaries.getMessage()
    assert "########Recompute########" in summaries.getMessage()


def test_the_whole_block_at_info(caplog, monkeypatch):
    """What seed users of ORTModule search their logs for: rows, plan rows, overheads, versions, notes."""
    monkeypatch.delenv("ORTMODULE_FALLBACK_POLICY")
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", "Gelu+:1:-1")
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 16), torch.nn.Tanh())
    ORTModule(model, DebugOptions(LogLevel.INFO))(torch.ones(4, 3, 8)).sum().backward()
    (table,) = tables(caplog.records)
    assert masked(table.getMessage()) == (HERE / "feature_table_info.txt").read_text()


def test_rows_tell_the_truth_about_switches(caplog, monkeypatch):
    def rows():
        caplog.clear()
        ORTModule(torch.nn.Linear(2, 2))(torch.ones(2, 2))
        (table,) = tables(caplog.records)
        cells = (re.match(r"  (.+?)\s+:   (ON|OFF)\s+:   (.*)", line) for line in table.getMessage().splitlines())
        return {cell[1]: cell[2] for cell in cells if cell}

    assert rows()["Auto Fallback"] == "OFF" and rows()["Custom Function"] == "ON"
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_UNSUPPORTED_DATA|FALLBACK_UNSUPPORTED_DEVICE")
    monkeypatch.setenv("ORTMODULE_ENABLE_CUSTOM_AUTOGRAD", "0")
    assert rows()["Auto Fallback"] == "ON" and rows()["Custom Function"] == "OFF"


def test_the_level_in_force(caplog, monkeypatch):
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", "FastGelu+:1:-1")
    notice, raised, table = logged(caplog, LogLevel.WARNING)
    assert "ignored" in notice.getMessage() and "ORTMODULE_MEMORY_OPT_LEVEL" in notice.getMessage()
    # In a batch this small gradients make the peak.
    assert raised.getMessage().startswith("ORTMODULE_MEMORY_OPT_LEVEL=1 raises the planned peak from ")
    row = next(line for line in table.getMessage().splitlines() if "Memory Optimizer" in line)
    assert row.split(":   ", 2)[1].strip() == "ON"
    assert "RecomputeLevel: 1 (TRANSFORMER_LAYERWISE_RECOMPUTE)" in row
    assert row.endswith("RecomputeConfig: ALL_RECOMPUTE_FOR_EACH_LAYER, ProbeLevel: 1")


class Windows(torch.nn.Module):
    """Of images of any height and width."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 4, 3, stride=2)

    def forward(self, x):
        return self.second(torch.nn.functional.gelu(self.first(x))).tanh().mean()


def run_windows(wrapped, *sizes):
    """{combination: bytes saved} at the last size."""
    for size in sizes:
        wrapped(torch.ones(2, 3, size, size)).backward()
    return {row["combination"]: row["saving_bytes"] for row in wrapped.memory_opportunities()}


def test_heights_and_widths_are_free_where_savings_are_told(caplog):
    """As numbers they would make savings of larger images those of the first ones."""
    wrapped = ORTModule(Windows(), DebugOptions(LogLevel.INFO))
    savings = run_windows(wrapped, 16)
    (table,) = tables(caplog.records)
    assert "x_dim2=16,\n" in table.getMessage() and "x_dim3" in table.getMessage()
    assert len(savings) > 1
    assert all(f"{combination} " in table.getMessage() for combination in savings)
    assert all(f" {bytes_saved:,} " in table.getMessage() for bytes_saved in savings.values())
    assert savings == run_windows(ORTModule(Windows()), 16)
    for size in (24, 32):
        assert run_windows(wrapped, size) == run_windows(ORTModule(Windows()), size)
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1}}


class Flattened(torch.nn.Module):
    """Its weights are for images of one size, which the exporter finds out."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4 * 14 * 14, 2)

    def forward(self, x):
        if x.shape[2] not in (16,):
            raise ValueError("images of 16 by 16")
        return self.second(self.first(x).tanh().flatten(1)).sum()


def test_sizes_that_the_model_fixes_are_numbers_where_savings_are_told(caplog):
    wrapped = ORTModule(Flattened(), DebugOptions(LogLevel.INFO))
    assert run_windows(wrapped, 16) == run_windows(ORTModule(Flattened()), 16)
    assert wrapped.fallback_reason is None
    assert "x_dim2" not in tables(caplog.records)[0].getMessage()


def test_other_heights_and_widths_free_those_of_a_first_graph_that_told_no_savings(caplog):
    wrapped = ORTModule(Windows(), DebugOptions(LogLevel.WARNING))
    run_windows(wrapped, 16)
    assert run_windows(wrapped, 24) == run_windows(ORTModule(Windows(), DebugOptions(LogLevel.INFO)), 24)
    assert wrapped.transition_counts()["in training mode"]["sizes"] == 1
    assert run_windows(wrapped, 20, 32) == run_windows(ORTModule(Windows()), 32)
    assert wrapped.transition_counts()["in training mode"]["sizes"] == 1


def test_nothing_at_error(caplog):
    assert logged(caplog, LogLevel.ERROR) == []


def test_other_ranks_are_silent(caplog, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert logged(caplog, LogLevel.WARNING) == []


@pytest.mark.parametrize(
    ("reentrant", "level"),
    [(True, "0"), (False, "1"), *(pytest.param(False, level, marks=pytest.mark.long) for level in "02")],
)
def test_checkpoints_inside_are_said_to_be_inlined(caplog, monkeypatch, reentrant, level):
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)

    def prepare(model):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})

    notices = [record.getMessage() for record in logged(caplog, LogLevel.WARNING, prepare=prepare)]
    (notice,) = [text for text in notices if "gradient checkpointing" in text]
    by_level = {
        "0": "ORTMODULE_MEMORY_OPT_LEVEL=1 recomputes per layer",
        "1": "ORTMODULE_MEMORY_OPT_LEVEL=1 recomputes per layer and is set",
        "2": "ORTMODULE_MEMORY_OPT_LEVEL=2 recomputes per layer and is set",
    }
    assert notice == f"gradient checkpointing inside the model is inlined; {by_level[level]}"
