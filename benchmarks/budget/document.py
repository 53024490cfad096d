"""docs/budget.md, of measured points."""

import statistics

from models import NAMES
from verdicts import beaten_by, faults_of_budgets, faults_of_lengths, quartiles, relative_times

CALM = 0.05  # of the processors
CHEAP = 0.1  # of default's time

HEAD = """# A budget in bytes

```python
model = ORTModule(net, memory_budget="600MiB", keep_outputs=("loss",))
```
The step needs no more than that beyond what was there before it: arena, outputs, gradients, scratch and what libraries
take inside a call, over forward and backward, as it is packed. It takes the fastest of all plans that fit; no bit of
the loss or of a gradient changes. How budgets are written, and what `lowtide plan` tells of them:
[memory-optimizer.md](memory-optimizer.md).
"""

READING = """Dropout is 0.1 and batches are those of `./dev bench training`. A peak is what a counter of malloc and
mmap finds above what is live before the step; *of eager* is that over PyTorch eager's. *predicted* is the engine's
own time of a step, by prices that `./dev calibrate` has measured on the same machine where nothing else is said. All
ways of a model take turns in one process; *ms* and *over default* are medians with quartiles, over default the step's
time over that of `default` in the same round. `default` is the engine without a budget and with all outputs, `loss`
with `keep_outputs=("loss",)`, budgets are of that; `checkpoint` is eager with `torch.utils.checkpoint` per layer.
`torch.compile` returns the loss alone as well; its `activation_memory_budget` has a process of its own beside eager,
and its ms are scaled by eager's. The last column is the way of the engine that beats a point of theirs in peak and in
time.
"""


def document(points, python):
    lines = [
        HEAD,
        f"## What it costs and saves\n\nWritten by `./dev bench budget --write`: Python {python}.\n",
        READING,
    ]
    for model, result in in_order(points.get("turns", {})):
        lines += [f"### {model}", "", *table(result, points.get("compile", {}).get(model, {})), ""]
    lines += how_far_down(points.get("planned", {}), points.get("turns", {}))
    lines += at_a_share(points.get("asked", {}))
    lines += checks(points.get("check", {}))
    lines += lengths(points.get("lengths", {}))
    lines += shapes(points.get("shapes", {}))
    return "\n".join(lines).rstrip() + "\n"


def table(result, compiled):
    rows = {row["way"]: row for row in result["rows"]}
    eager, default = rows.get("eager"), rows.get("default")
    steps = [len(times) for times in next(iter(rows.values()))["times_ms"]]
    taken = f"{len(steps)} rounds of {steps[0]} timed steps, {result['cores']} cores"
    yield f"{taken}{busy_with(result)}{priced_as(result)}."
    if "note" in result:  # written by hand into points.json: what has changed since
        yield result["note"]
    yield ""
    yield "| way | asked MB | planned MB | peak MB | of eager | predicted ms | ms | over default | beaten by |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|---|"
    ours = {name: point(row) for name, row in rows.items() if "planned_peak_bytes" in row}
    for name, row in rows.items():
        times = [time for of_round in row["times_ms"] for time in of_round]
        theirs = name == "checkpoint"
        over = relative_times(row, default) if default and row is not default else None
        yield line(
            name,
            megabytes(row.get("budget_bytes")),
            megabytes(row.get("planned_peak_bytes")),
            megabytes(row["peak_bytes"]),
            share(row["peak_bytes"], eager and eager["peak_bytes"]),
            f"{row['predicted_ms']:.0f}" if "predicted_ms" in row else "",
            with_quartiles(times, "{:.0f}"),
            over and with_quartiles([ratio - 1 for ratio in over], "{:+.0%}"),
            (beaten_by(point(row), ours) or "none") if theirs else "",
        )
    for fraction, found in sorted(compiled.items(), reverse=True):
        beside, row = ({r["way"]: r for r in found["rows"]}[way] for way in ("eager", "compile"))
        if eager is None:
            continue
        scaled = [ratio * median_ms(eager) for ratio in relative_times(row, beside)]
        yield line(
            f"torch.compile {fraction}",
            "",
            "",
            megabytes(row["peak_bytes"]),
            share(row["peak_bytes"], eager["peak_bytes"]),
            "",
            with_quartiles(scaled, "{:.0f}"),
            default and f"{statistics.median(scaled) / median_ms(default) - 1:+.0%}",
            beaten_by((row["peak_bytes"], statistics.median(scaled)), ours) or "none",
        )


def busy_with(result):
    others = result.get("others")
    if others is None:
        return "; what other work had of them was not counted"
    return f", of which other work had {others:.0%}" if others > CALM else ""


def priced_as(result):
    return "" if result.get("calibrated") else "; predicted by shipped prices, of another machine"


def point(row):
    return row["peak_bytes"], median_ms(row)


def median_ms(row):
    return statistics.median(time for times in row["times_ms"] for time in times)


def line(*cells):
    return f"| {' | '.join(cell or '' for cell in cells)} |"


def megabytes(count):
    return f"{count / 1e6:.1f}" if count else ""


def share(part, whole):
    return f"{part / whole:.2f}" if whole else ""


def with_quartiles(numbers, form):
    low, middle, high = quartiles(numbers)
    return f"{form.format(middle)} ({form.format(low)} to {form.format(high)})"


def how_far_down(planned, turns):
    """What plans need, beside eager's measured peak."""
    if not planned:
        return
    yield "## How far down"
    yield ""
    yield "Planned peaks, in MB and of eager's measured one (`--planned`): with all outputs, with the loss alone,"
    yield f"the least that is predicted to add at most {CHEAP:.0%} to that, and the floor. Gradients belong to a step's"
    yield "peak: no plan of one backward needs less than they do, and where they are more than a quarter of"
    yield "eager's peak, so is every plan."
    yield ""
    yield "| model | eager | gradients | default | loss | cheap | floor |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for model, result in in_order(planned):
        eager = next((row["peak_bytes"] for row in turns.get(model, {}).get("rows", []) if row["way"] == "eager"), None)
        rungs = result["rungs"]
        most_ms = (1 + CHEAP) * rungs[0]["predicted_ms"]
        needs = (
            result["gradient_bytes"],
            result["default_peak_bytes"],
            rungs[0]["peak_bytes"],
            min(rung["peak_bytes"] for rung in rungs if rung["predicted_ms"] <= most_ms),
            rungs[-1]["peak_bytes"],
        )
        yield line(model, megabytes(eager), *(with_share(count, eager) for count in needs))
    yield ""


def at_a_share(found):
    """The time at a budget that is a share of eager's peak."""
    if not found:
        return
    yield "## A quarter of eager's peak"
    yield ""
    yield "The fastest plan within a quarter of eager's peak, within 0.45 of resnet50's; the floor where that is more"
    yield "(`--asked`). What it takes over default, both measured in turns, is what counts, not what is predicted."
    yield ""
    yield "| model | asked MB | peak MB | of eager | default ms | ms | over default | processor, other work on it |"
    yield "|---|--:|--:|--:|--:|--:|--:|---|"
    for model, result in in_order(found):
        rows = {row["way"]: row for row in result["rows"]}
        eager, default, asked = (rows[name] for name in ("eager", "default", "asked"))
        yield line(
            model,
            megabytes(asked["budget_bytes"]),
            megabytes(asked["peak_bytes"]),
            share(asked["peak_bytes"], eager["peak_bytes"]),
            with_quartiles(flat(default), "{:.0f}"),
            with_quartiles(flat(asked), "{:.0f}"),
            with_quartiles([ratio - 1 for ratio in relative_times(asked, default)], "{:+.0%}"),
            f"{result['processor']}, {result['others']:.0%}",
        )
    yield ""


def flat(row):
    return [time for times in row["times_ms"] for time in times]


def with_share(count, whole):
    return f"{megabytes(count)} ({share(count, whole)})" if whole else megabytes(count)


def in_order(found):
    return sorted(found.items(), key=lambda item: NAMES.index(item[0]) if item[0] in NAMES else len(NAMES))


def checks(found):
    if not found:
        return
    yield "## Forty budgets"
    yield ""
    yield "From default to floor (`--check`): what is asked is kept by plan and by count, less asked is never more"
    yield "bytes or less time predicted, and loss and gradients are the bits of the step without a budget, dropout on."
    yield "The counter finds a little more than a plan has: autograd's nodes, and Python's objects around tensors."
    yield ""
    yield "| model | budgets | plans that served | most over what was asked, measured | same bits | does not hold |"
    yield "|---|--:|--:|--:|--:|---|"
    for model, result in in_order(found):
        rows = result["rows"]
        over = max(row["measured_bytes"] - row["asked_bytes"] for row in rows)
        yield line(
            model,
            str(len(rows)),
            str(len({row["planned_bytes"] for row in rows})),
            f"{over:,} B",
            str(sum(row["same_bits"] for row in rows)),
            "; ".join(faults_of_budgets(result)),
        )
    yield ""


def lengths(found):
    if not found:
        return
    yield "## Lengths drawn from 64 to 1,024"
    yield ""
    yield "One budget for all batches, half of what eager needs for the longest (`--lengths`)."
    yield ""
    yield "| model | budget MB | eager's longest | batches | most measured | plan 0 | others | exports | faults |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|---|"
    for model, result in in_order(found):
        rows = result["rows"]
        same = sum(row["planned_bytes"] == row["without_bytes"] for row in rows)
        yield line(
            model,
            megabytes(result["budget_bytes"]),
            megabytes(result["eager_longest_bytes"]),
            str(len(rows)),
            megabytes(max(row["measured_bytes"] for row in rows)),
            str(same),
            str(len(rows) - same),
            str(sum(result["transitions"].values())),
            "; ".join(faults_of_lengths(result)),
        )
    yield ""


def shapes(found):
    if not found:
        return
    yield "## A size never seen"
    yield ""
    yield "What its first call takes beyond a step, under a budget halfway between default and floor (`--shapes`): the"
    yield "fastest plan that fits is looked for among those there are, and bound. Processor time."
    yield ""
    yield "| model | plans | sizes | ms, median and most |"
    yield "|---|--:|--:|--:|"
    for model, result in in_order(found):
        times = [row["ms"] for row in result["rows"]]
        yield line(model, str(result["plans"]), str(len(times)), f"{statistics.median(times):.1f}, {max(times):.1f}")
    yield ""
