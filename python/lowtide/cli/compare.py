"""`lowtide compare A B`: the first tensor by which two runs differ."""

from pathlib import Path

from lowtide.convergence.compare import compare
from lowtide.convergence.page import write_page

_FIELDS = ("shape", "dtype", "min", "max", "mean", "std", "nan", "inf", "negative", "positive", "zero")


def add_to(commands):
    parser = commands.add_parser(
        "compare",
        help="find the first divergence of two runs from their statistics",
        description="Walks the statistics of two runs (folders that StatisticsSubscriber wrote, or folders of such, "
        "one a rank) in order, and names the first tensor that differs beyond what those before it explain. Exit code "
        "1 if there is one.",
    )
    parser.add_argument("first", metavar="A", help="folder of the run that is taken to be right")
    parser.add_argument("second", metavar="B", help="folder of the run to look at")
    parser.add_argument("--rtol", type=float, help="differences up to here are rounding (by dtype: 1e-4 for float32)")
    parser.add_argument("--largest", type=int, default=10, metavar="N", help="show the N largest differences (10)")
    parser.add_argument("--html", metavar="FILE", help="write a page with all differences as heat maps")
    parser.set_defaults(run=run)


def run(options):
    comparisons = compare(options.first, options.second, options.rtol)
    for comparison in comparisons:
        print(report(comparison, options.largest))
    if options.html:
        write_page(Path(options.html), comparisons, options.first, options.second)
        print(f"written: {options.html}")
    return 1 if any(comparison.first_divergence for comparison in comparisons) else 0


def report(comparison, largest):
    tensors, found = comparison.tensors, comparison.first_divergence
    lines = [f"{comparison.label}:"] if comparison.label else []
    steps = f"steps {comparison.steps[0]} to {comparison.steps[-1]}"
    lines.append(f"{len(tensors)} tensors in {len(comparison.steps)} steps compared ({steps})")
    lines += [f"step {step} is in {folder} alone" for step, folder in comparison.only_in_one.items()]
    worst = max((tensor.difference for tensor in tensors), default=0.0)
    if found is None and worst == 0:
        return "\n".join([*lines, "no difference"])
    if found is None:
        limit = max(tensor.limit for tensor in tensors)
        lines.append(f"no divergence: differences of up to {worst:.1e} are rounding (limit {limit:.0e})")
    else:
        lines += divergence(found)
    return "\n".join([*lines, "", *table(comparison.largest(largest))])


def divergence(found):
    by = "is in one run alone" if found.reason == "missing" else f"differs by {found.difference:.1e} ({found.reason})"
    lines = [
        f"first divergence: step {found.step}, {found.direction}, {found.name}: {by}",
        f"  what came before it differs by at most {found.explained:.1e}; rounding would be up to {found.limit:.0e}",
    ]
    if found.first and found.second:
        lines.append(f"  {'':10}{'A':>26}{'B':>26}")
        for name in _FIELDS:
            values = [_shown(getattr(summary, name)) for summary in (found.first, found.second)]
            lines.append(f"  {name:10}{values[0]:>26}{values[1]:>26}")
    return lines


def _shown(value):
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def table(tensors):
    rows = [("step", "direction", "tensor", "difference", "in", "mean of A", "mean of B")]
    for tensor in tensors:
        means = [_shown(summary.mean) if summary else "-" for summary in (tensor.first, tensor.second)]
        rows.append(
            (str(tensor.step), tensor.direction, tensor.name, f"{tensor.difference:.1e}", tensor.reason or "-", *means)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "largest differences:",
        *("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows),
    ]
