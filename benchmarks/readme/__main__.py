"""What README opens with: ./dev bench readme [--model gpt2]

The picture docs/arena.svg, of a model's arena without a budget and under the one that is predicted to add a tenth of
the step's time, and the table of speed and peaks of what `./dev bench budget` has measured and stored.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks" / name) for name in ("training", "budget")]

from budgeted import BudgetedStep, nearest_rung  # noqa: E402
from document import median_ms  # noqa: E402
from models import NAMES, build  # noqa: E402
from ways import ADDED  # noqa: E402

from lowtide.report import arena_svg  # noqa: E402

POINTS = ROOT / "benchmarks" / "budget" / "points.json"
BEGIN, END = "<!-- written by ./dev bench readme -->", "<!-- end -->"
WAYS = ("loss", f"budget, {ADDED:+.0%} time")


def write_picture(name):
    model, make_batch = build(name)
    step = BudgetedStep(model, make_batch())
    chosen = nearest_rung(step.rungs, ADDED)
    added = step.rungs[chosen]["predicted_ms"] / step.rungs[0]["predicted_ms"] - 1
    titles = f"{name}, loss alone: without a budget", f"under a budget: {added:+.1%} time, predicted"
    pictures = [step.session.arena_picture(step.values, plan) for plan in (0, chosen)]
    (ROOT / "docs" / "arena.svg").write_text(arena_svg(list(zip(titles, pictures, strict=True))))
    return f"![The arena of a training step of {name}: addresses over time, without and under a budget](docs/arena.svg)"


def table(turns):
    """Lines of Markdown: eager's time and peak, then speed and peak in relation to it. `turns`: {model: result} of
    ./dev bench budget."""
    yield "| model | eager | | loss alone | | the same under a budget | |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for model in [name for name in NAMES if name in turns]:
        rows = {row["way"]: row for row in turns[model]["rows"]}
        eager = rows["eager"]
        cells = [f"{median_ms(eager):.0f} ms", f"{eager['peak_bytes'] / 1e6:.0f} MB"]
        for way in WAYS:
            if way not in rows:  # the plan without a budget is the one
                cells += ["", ""]
                continue
            cells.append(f"{median_ms(eager) / median_ms(rows[way]):.2f}x")
            cells.append(f"{rows[way]['peak_bytes'] / eager['peak_bytes']:.0%}")
        yield f"| {model} | {' | '.join(cells)} |"


def note(turns):
    cores = max(result["cores"] for result in turns.values())
    return (
        f"Forward and backward on {cores} cores: the time of a step and what it needs beside parameters in eager, then "
        f"speed and peak in relation to that. The budget is one that is predicted to add {ADDED:.0%} of the time; "
        "[docs/budget.md](docs/budget.md) has others, checkpointing and torch.compile."
    )


def main():
    parser = argparse.ArgumentParser(prog="./dev bench readme", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt2", choices=NAMES, help="of the picture (gpt2)")
    lines = [BEGIN, write_picture(parser.parse_args().model)]
    turns = json.loads(POINTS.read_text()).get("turns", {}) if POINTS.exists() else {}
    if turns:
        lines += ["", *table(turns), "", note(turns)]
    block = "\n".join([*lines, END])
    page = (ROOT / "README.md").read_text()
    before, _, rest = page.partition(BEGIN)
    (ROOT / "README.md").write_text(before + block + rest.partition(END)[2])
    print(block)


if __name__ == "__main__":
    main()
