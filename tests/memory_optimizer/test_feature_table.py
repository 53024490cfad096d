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
IDS = "inputs_input_ids"


def masked(text):
    """Versions and numbers as '#'; `+cpu` and the like go with the version."""
    return re.sub(r"\d+(,\d{3})*(\.\d+)*(\+\w+)?", "#", text)


def row(combination, frequency, saving, symbolic, on, peak):
    keys = ("combination", "frequency", "saving_bytes", "saving_symbolic", "on", "peak_after")
    return dict(zip(keys, (combination, frequency, saving, symbolic, on, peak), strict=True))


def test_plan_rows_have_the_ancestors_columns():
    batch, length = f"{IDS}_dim0", f"{IDS}_dim1"
    rows = [
        row("Reshape+Where+BiasSoftmax+:1:-1", 5, 671_088_640, f"640.0*{batch}*{length}**2", True, 2_000_000_000),
        row("Cast+:1:-1", 6, 402_587_648, f"{batch}*{length}*(384.0*{length} - 64.0)", True, 1_900_000_000),
        row("Reshape+Where+:1:-1", 1, 134_217_728, f"128.0*{batch}*{length}**2", False, 1_800_000_000),
        row("BiasSoftmax+:1:-1", 1, 134_086_656, f"128.0*{batch}*{length}*({length} - 1)", False, 1_700_000_000),
        row(
            "Reshape+Unsqueeze+Unsqueeze+Cast+Sub+Mul+Cast+:1:-1",
            1,
            4_096,
            f"4.0*{batch}*{length}",
            False,
            1_600_000_000,
        ),
        row("Cast+:2:-1", 1, 2_048, f"2.0*{batch}*{length}", False, None),
    ]
    memory = MemoryOptions("Reshape+Where+BiasSoftmax+:1:-1,Cast+:1:-1")
    reduction = Row("FLOPReduction", True, "Reduce FLOPs by upstreaming shrinking-sized ops")
    table = layout(
        [
            Row("ATen Executor", True, "Dispatch ATen operators to ORT's ATen executor"),
            memory_optimizer_row(memory, {"rows": rows}),
            Row(
                "Compute Optimizer",
                True,
                "Enable/Disable with env ORTMODULE_ENABLE_COMPUTE_OPTIMIZER=1/0",
                [reduction],
            ),
            Row("Auto Fallback", True, "Fallback to PyTorch when encountering unsupported ops"),
            Row("ZeRO Stage3 Support", False, "Enable/Disable with env ORTMODULE_ENABLE_ZERO_STAGE3=1/0"),
        ]
    )
    assert "\n".join(table) + "\n" == (HERE / "plan_rows.txt").read_text()


def logged(caplog, level, steps=2, prepare=lambda model: None):
    """The records of a tiny GPT-2's first steps."""
    model, make_batch = zoo.build("gpt2")
    prepare(model)
    wrapped = ORTModule(model, DebugOptions(level))
    with caplog.at_level(wrapped._options.python_level, logger="lowtide"):
        for length in range(16, 16 + steps):
            wrapped(**make_batch(length=length)).loss.backward()
        with torch.no_grad():
            wrapped(**make_batch())
    return [record for record in caplog.records if record.name == "lowtide"]


def tables(records):
    return [record for record in records if "is accelerating your model" in record.getMessage()]


def test_the_table_at_warning(caplog, capsys):
    records = logged(caplog, LogLevel.WARNING)
    (table,) = tables(records)
    assert table.levelno == logging.WARNING
    assert masked(table.getMessage()) == (HERE / "feature_table.txt").read_text()
    assert "Plan 1" not in table.getMessage() and records == [table]
    assert capsys.readouterr().out == ""


def test_nothing_at_error(caplog):
    assert logged(caplog, LogLevel.ERROR) == []


def test_other_ranks_are_silent(caplog, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert logged(caplog, LogLevel.WARNING) == []


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_inside_are_said_to_be_inlined(caplog, reentrant):
    def prepare(model):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})

    notices = [record.getMessage() for record in logged(caplog, LogLevel.WARNING, prepare=prepare)]
    (notice,) = [text for text in notices if "gradient checkpointing" in text]
    assert notice == (
        "gradient checkpointing inside the model is inlined; ORTMODULE_MEMORY_OPT_LEVEL=1 recomputes per layer"
    )
