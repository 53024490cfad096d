"""The feature table: what ORTModule does for a model and what it does not, as text for the log."""

import importlib.metadata
from dataclasses import dataclass, field

import torch

import lowtide
from lowtide.environment import (
    compute_optimizer,
    custom_functions_run,
    gradients_leave_by_bucket,
    partitioned_parameters_are_gathered,
)
from lowtide.log import LogLevel

from .fallback import FallbackPolicy, policy_in_force
from .options import MEMORY_LEVELS, cast_propagation

CLOSING = "*" * 72
_MISSING = " (not in this build)"  # behind the texts that ORTModule's users know
_NAME_WIDTH = 21  # where plan_row_lines of src/report/insight.h expects the other columns to start


@dataclass
class Row:
    name: str
    on: bool
    text: str
    parts: list = field(default_factory=list)  # rows below it
    lines: str = ""  # below it, laid out already


def feature_table(agent, sizes, log_level, stat=None):
    """For the log, at the sizes of the first call. `stat`: Session.memory_stat, where plan rows are wanted."""
    lines = [*overhead(agent, log_level), ""]
    notes = [*stat["notes"].splitlines(), ""] if stat is not None else []
    return _table("training" if agent.training else "inference", feature_rows(agent, sizes, stat), lines, notes)


def pieces_table(step, mode):
    """The same of a module in pieces: `step`: StepOfPieces."""
    rows = [
        *_rows_of_all(step.in_engine[-1].agent, step.memory(), step.report(), mode == "training"),
        Row("Pieces", True, step.words()),
    ]
    return _table(mode, rows)


def _table(mode, rows, lines=(), notes=()):
    lines = [
        "",
        "***** lowtide (ORTModule) is accelerating your model *****",
        "",
        f"ORTModule is enabled with following features ON/OFF for [{mode}] mode:",
        "",
        *layout(rows),
        "",
        *lines,
        f"Versions: lowtide - {lowtide.__version__}, PyTorch - {torch.__version__}, ONNX - {_version('onnx')}",
        "",
        *notes,
    ]
    return "\n".join([*lines, CLOSING, ""])


def feature_rows(agent, sizes, stat=None):
    """Every row says what this build does; what it does not have is OFF."""
    memory = agent.session.memory(agent.symbol_values(sizes))
    return _rows_of_all(agent, memory, agent.session.report, agent.training, stat)


def _rows_of_all(agent, memory, report, training, stat=None):
    """`memory`, `report`: as Session has them."""
    optimizer = agent.memory
    return [
        Row("ATen Executor", True, "Dispatch ATen operators to ORT's ATen executor"),
        cast_propagation_row(),
        Row("Custom Function", custom_functions_run(), "Support custom torch.autograd.Function export and execution"),
        memory_optimizer_row(optimizer, stat),
        memory_budget_row(optimizer, memory),
        Row(
            "Mem Efficient Grad",
            training and gradients_leave_by_bucket(),
            "Enable/Disable with env ORTMODULE_ENABLE_MEM_EFFICIENT_GRAD_MGMT=1/0",
        ),
        compute_optimizer_row(agent, training),
        Row(
            "Auto Fallback",
            FallbackPolicy.FALLBACK_DISABLE not in policy_in_force(),
            "Fallback to PyTorch when encountering unsupported ops",
        ),
        Row(
            "TritonOp Enabled",
            False,
            f"ORT will switch to Triton for executing some ops to further accelerate training.{_MISSING}",
        ),
        Row(
            "ZeRO Stage3 Support",
            partitioned_parameters_are_gathered(),
            "Enable/Disable with env ORTMODULE_ENABLE_ZERO_STAGE3=1/0",
        ),
        Row("Lowered", report["native_nodes"] > 0, lowered_text(report)),
        Row("Memory", True, memory_text(memory)),
    ]


def compute_optimizer_row(agent, training):
    on = training and compute_optimizer()
    parts = [Row("FLOPReduction", agent.leaves_rows_out, "Reduce FLOPs by upstreaming shrinking-sized ops")]
    if agent.leaves_rows_out:
        parts.append(Row("Label Sparsity Opt", True, f"[AUTO ENABLED] Input density: {agent.labels.words()}"))
    if agent.leaves_padding_out:
        parts.append(Row("Embed Sparsity Opt", True, f"[AUTO ENABLED] Input density: {agent.labels.words_of_masks()}"))
    return Row("Compute Optimizer", on, "Enable/Disable with env ORTMODULE_ENABLE_COMPUTE_OPTIMIZER=1/0", parts)


def cast_propagation_row():
    options = cast_propagation()
    level, allowed = options["cast_level"], options["cast_allow"]
    text = f"Level {level} enabled" if level else "Level 0: casts run where the model has them"
    if allowed:
        text = f"Level {level}, and over {', '.join(allowed)}"
    return Row("Cast Propagation", level > 0 or bool(allowed), text)


def memory_optimizer_row(memory, stat):
    available = ", available configs:" if stat is not None and stat["rows"] else ""
    probe = f"ProbeLevel: {memory.probe.partition(':')[0] or 1}"
    if memory.knee:
        text = f"RecomputeLevel: auto ({MEMORY_LEVELS['auto']}), {probe}{available}"
    elif memory.level:
        level = f"{memory.level} ({MEMORY_LEVELS[str(memory.level)]})"
        text = f"RecomputeLevel: {level}, RecomputeConfig: ALL_RECOMPUTE_FOR_EACH_LAYER, {probe}{available}"
    elif memory.on:
        text = f"RecomputeConfig: {memory.config}, {probe}{available}"
    else:
        enable = "Enable with env ORTMODULE_MEMORY_OPT_LEVEL=1 or 2, or ORTMODULE_MEMORY_OPT_CONFIG=<plan1 config>,..."
        text = f"{enable}{available}"
    return Row("Memory Optimizer", memory.on, text, lines=stat["row_lines"] if available else "")


def memory_budget_row(optimizer, memory):
    budget = optimizer.budget
    if budget is None:
        text = 'Enable with ORTModule(model, memory_budget="600MiB") or env LOWTIDE_MEMORY_BUDGET=600MiB'
        return Row("Memory Budget", False, text)
    needed = _size(memory["planned_peak_bytes"])
    return Row("Memory Budget", True, f"{budget}; the step's plan needs {needed}")


def lowered_text(report):
    text = (
        f"{report['native_nodes']} nodes native, {report['aten_nodes']} on PyTorch's kernels, "
        f"{report['python_nodes']} through Python"
    )
    return text + (f" ({', '.join(sorted(set(report['fallbacks'])))})" if report["fallbacks"] else "")


def memory_text(memory):
    peak, arena, bound = (_size(memory[name]) for name in ("planned_peak_bytes", "arena_bytes", "lower_bound_bytes"))
    return f"Planned peak {peak}, arena {arena}, lower bound {bound}"


def _size(size_bytes):
    return f"{size_bytes / 1e6:,.1f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1e3:.1f} kB"


def layout(rows):
    """Lines of four columns: name, ON or OFF, text; rows of a row are indented under it."""
    width = max(_NAME_WIDTH, 2 + max(len(row.name) for row in rows))
    for row in rows:
        yield _line(row.name, row, width)
        yield from (_line(f" - {part.name}", part, width) for part in row.parts)
        yield from row.lines.splitlines()


def _line(name, row, width):
    return f"  {name.ljust(width)} :   {'ON' if row.on else 'OFF':<5} :   {row.text}"


def overhead(agent, log_level):
    export = agent.export_seconds or 0.0
    total = export + agent.session_seconds
    yield f"Total lowtide initialization overhead is {total:.2f}s where export takes {_seconds(agent.export_seconds)}."
    if log_level < LogLevel.WARNING:
        stages = ", ".join(f"{name} takes {time:.2f}s" for name, time in agent.session.report["seconds"].items())
        yield f"Other overhead details:  {stages}, session creation takes {agent.session_seconds:.2f}s"


def _seconds(value):
    return "N/A" if value is None else f"{value:.2f}s"


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
