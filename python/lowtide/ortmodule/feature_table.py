"""The feature table: what ORTModule does for a model and what it does not, as text for the log."""

from dataclasses import dataclass, field

import torch

import lowtide

from .options import MEMORY_LEVELS, LogLevel, fallback_disabled

CLOSING = "*" * 72
# Plan rows: widths of the configuration, the frequency, the saving in bytes and as an expression.
_PLAN_WIDTHS = (60, 8, 16, 24)
_PLAN_TITLES = ("Config", "Freq", "Saving(B)", "Saving Symbolic(Bytes)", "Peak after")


@dataclass
class Row:
    """A feature of the table. A row whose `on` is None is a heading: only its text shows."""

    name: str
    on: bool | None
    text: str
    parts: list = field(default_factory=list)  # rows below it


def feature_table(agent, sizes, log_level, stat=None):
    """For the log, at the sizes of the first call. `stat`: Session.memory_stat, where plan rows are wanted."""
    mode = "training" if agent.training else "inference"
    lines = [
        "",
        "***** lowtide (ORTModule) is accelerating your model *****",
        "",
        f"ORTModule is enabled with following features ON/OFF for [{mode}] mode:",
        "",
        *layout(feature_rows(agent, sizes, stat)),
        "",
        *overhead(agent, log_level),
        "",
        f"Versions: lowtide - {lowtide.__version__}, PyTorch - {torch.__version__}",
        "",
    ]
    if stat is not None:
        lines += [*notes(agent, sizes), ""]
    return "\n".join([*lines, CLOSING, ""])


def feature_rows(agent, sizes, stat=None):
    """Every row says what this build does; what it does not have is OFF."""
    report = agent.session.report
    return [
        Row("ATen Executor", True, "Dispatch ATen operators without a lowering to PyTorch's kernels"),
        Row("Cast Propagation", False, "Not in this build: casts run where the model has them"),
        Row("Custom Function", True, "Support custom torch.autograd.Function export and execution"),
        memory_optimizer_row(agent.memory, stat),
        Row(
            "Compute Optimizer",
            False,
            "Not in this build",
            [Row("FLOPReduction", False, "Reduce FLOPs by upstreaming shrinking-sized ops")],
        ),
        Row("Auto Fallback", not fallback_disabled(), "Fallback to PyTorch when encountering unsupported ops"),
        Row("TritonOp Enabled", False, "Not in this build: kernels are for the CPU"),
        Row("ZeRO Stage3 Support", False, "Not in this build"),
        Row("Lowered", report["native_nodes"] > 0, lowered_text(report)),
        Row("Memory", True, memory_text(agent.session.memory(agent.symbol_values(sizes)))),
    ]


def memory_optimizer_row(memory, stat):
    available = ", available configs:" if stat is not None and stat["rows"] else ""
    probe = f"ProbeLevel: {memory.probe.partition(':')[0] or 1}"
    if memory.level:
        level = f"{memory.level} ({MEMORY_LEVELS[str(memory.level)]})"
        text = f"RecomputeLevel: {level}, RecomputeConfig: ALL_RECOMPUTE_FOR_EACH_LAYER, {probe}{available}"
    elif memory.on:
        text = f"RecomputeConfig: {memory.config}, {probe}{available}"
    else:
        enable = "Enable with env ORTMODULE_MEMORY_OPT_LEVEL=1 or 2, or ORTMODULE_MEMORY_OPT_CONFIG=<plan1 config>,..."
        text = f"{enable}{available}"
    return Row("Memory Optimizer", memory.on, text, plan_rows(stat["rows"]) if available else [])


def plan_rows(rows):
    """A heading, then what can be switched on: `rows` of Session.memory_stat."""
    cells = [
        (
            row["combination"],
            str(row["frequency"]),
            f"{row['saving_bytes']:,}",
            row["saving_symbolic"],
            "" if row["peak_after"] is None else f"{row['peak_after']:,}",
        )
        for row in rows
    ]
    widths = [max(width, 2 + max(len(line[column]) for line in cells)) for column, width in enumerate(_PLAN_WIDTHS)]
    texts = [
        "".join(cell.ljust(width) for cell, width in zip(line, [*widths, 0], strict=True)).rstrip()
        for line in [_PLAN_TITLES, *cells]
    ]
    heading, *plans = texts
    return [
        Row("", None, heading),
        *(Row(f"Plan {i + 1}", row["on"], text) for i, (row, text) in enumerate(zip(rows, plans, strict=True))),
    ]


def lowered_text(report):
    text = (
        f"{report['native_nodes']} nodes native, {report['aten_nodes']} on PyTorch's kernels, "
        f"{report['python_nodes']} through Python"
    )
    return text + (f" ({', '.join(sorted(set(report['fallbacks'])))})" if report["fallbacks"] else "")


def memory_text(memory):
    peak, arena, bound = (memory[name] for name in ("planned_peak_bytes", "arena_bytes", "lower_bound_bytes"))
    return f"Planned peak {peak / 1e6:,.1f} MB, arena {arena / 1e6:,.1f} MB, lower bound {bound / 1e6:,.1f} MB"


def layout(rows):
    """Lines of four columns: name, ON or OFF, text; rows of a row are indented under it."""
    flat = []
    for row in rows:
        flat.append((row.name, row.on, row.text))
        flat += [(f" - {part.name}" if part.name else "", part.on, part.text) for part in row.parts]
    width = 2 + max(len(name) for name, _, _ in flat)
    lines = []
    for name, on, text in flat:
        colon, state = (" ", "") if on is None else (":", "ON" if on else "OFF")
        lines.append(f"  {name.ljust(width)} {colon}   {state.ljust(5)} {colon}   {text}".rstrip())
    return lines


def overhead(agent, log_level):
    export = agent.export_seconds or 0.0
    total = export + agent.session_seconds
    yield f"Total lowtide initialization overhead is {total:.2f}s where export takes {_seconds(agent.export_seconds)}."
    if log_level < LogLevel.WARNING:
        stages = ", ".join(f"{name} takes {time:.2f}s" for name, time in agent.session.report["seconds"].items())
        yield f"Other overhead details:  {stages}, session creation takes {agent.session_seconds:.2f}s"


def notes(agent, sizes):
    yield "Note 1: use comma to enable multiple plans at the same time."
    yield "  export ORTMODULE_MEMORY_OPT_CONFIG=<plan1 config>,<plan2 config>,..."
    yield "Note 2: saving is calculated based on the 1st batch symbolic dim values:"
    for name, value in symbolic_dims(agent, sizes).items():
        yield f"  {name}={value},"


def symbolic_dims(agent, sizes):
    """Dims of inputs that may change, in the inputs' order; those tied to another input's dim too."""
    known = agent.captured.transcript.sizes
    free = set(agent.session.symbols)
    return {
        name: sizes[index][position]
        for name, (index, position) in known.dims.items()
        if name in free or (index, position) in known.ties
    }


def _seconds(value):
    return "N/A" if value is None else f"{value:.2f}s"
