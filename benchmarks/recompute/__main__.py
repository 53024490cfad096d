"""How much memory against how much speed: ./dev bench recompute [--models gpt2,bert] [--plans 5] [--write]

Per model: PyTorch eager, eager with torch.utils.checkpoint per layer, lowtide without recompute, levels 1 and 2, and
each plan alone. Measured as ./dev bench training measures, all modes of all models taking turns.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

TRAINING = Path(__file__).resolve().parents[1] / "training"
sys.path.insert(0, str(TRAINING))
from models import NAMES  # noqa: E402
from modes import is_mode, split_modes  # noqa: E402
from rounds import measure_in_rounds  # noqa: E402

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "recompute.md"
LAYERED = tuple(name for name in NAMES if name != "resnet50")  # its blocks have no layers of one kind
MODES = ("eager", "checkpoint", "lowtide", "level1", "level2")


def arguments():
    parser = argparse.ArgumentParser(prog="./dev bench recompute", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(LAYERED), help=f"of {', '.join(LAYERED)} (all)")
    parser.add_argument("--modes", default=",".join(MODES), help=f"besides plans ({','.join(MODES)})")
    parser.add_argument("--plans", type=int, metavar="N", help="the N plans that save most (all)")
    parser.add_argument("--steps", type=int, default=5, help="timed steps a process (5)")
    parser.add_argument("--rounds", type=int, default=2, help="processes for each model and mode (2)")
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    parser.add_argument("--write", action="store_true", help=f"write the tables into docs/{DOCUMENT.name}")
    parsed = parser.parse_args()
    parsed.models, parsed.modes = parsed.models.split(","), split_modes(parsed.modes)
    if unknown := [name for name in parsed.models if name not in LAYERED]:
        parser.error(f"unknown models: {', '.join(unknown)}; known: {', '.join(LAYERED)}")
    if unknown := [name for name in parsed.modes if not is_mode(name)]:
        parser.error(f"unknown modes: {', '.join(unknown)}; known: {', '.join(MODES)}, plan:CONFIG")
    return parsed


def plans_of(model):
    command = [sys.executable, str(Path(__file__).with_name("plans.py")), model]
    # What is in force would not be offered.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ORTMODULE_MEMORY_OPT_")}
    done = subprocess.run(command, env=inherited, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not found:
        sys.exit(f"{done.stderr}the plans of {model} cannot be found")
    return json.loads(found[0].removeprefix("RESULT "))


def pairs(options):
    for model in options.models:
        yield from ((model, mode) for mode in options.modes)
        if options.plans != 0:
            yield from ((model, f"plan:{plan}") for plan in plans_of(model)[: options.plans])


def table(model, rows):
    """Lines of Markdown: peak and time of each mode, and both against lowtide without recompute."""
    rows = [row for row in rows if row["model"] == model]
    base = next((row for row in rows if row["mode"] == "lowtide" and "step_ms" in row), None)
    lines = [
        "| mode | peak MB | peak with AdamW MB | step ms (quartiles) | peak | time |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        name = f"`{row['mode']}`"
        if "step_ms" not in row:
            reason = row.get("skipped") or row["error"].splitlines()[-1]
            lines.append(f"| {name} | {'skipped' if 'skipped' in row else 'failed'}: {reason} | | | | |")
            continue
        against = ["", ""]
        if base:
            against = [f"{row[key] / base[key]:.2f}" for key in ("peak_bytes", "step_ms")]
        in_pytorch = f" (in PyTorch: {row['fallback_reason']})" if row["fallback_reason"] else ""
        cells = [
            name + in_pytorch,
            f"{row['peak_bytes'] / 1e6:.1f}",
            f"{row['peak_with_optimizer_bytes'] / 1e6:.1f}",
            f"{row['step_ms']:.0f} ({row['step_ms_low']:.0f} to {row['step_ms_high']:.0f})",
            *against,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def document(options, rows):
    cores = len(os.sched_getaffinity(0))
    lines = [
        "# How much memory against how much speed",
        "",
        f"Written by `./dev bench recompute --write`: Python {platform.python_version()}, {cores} cores,",
        f"{options.rounds} processes of {options.steps} timed steps for each row, all rows taking turns.",
        "Models, batches and the definition of a peak are those of `./dev bench training`: dropout 0.1, forward and",
        "backward with gradients, above what is live before the step. `checkpoint` is eager with",
        "`torch.utils.checkpoint` per layer; `lowtide` is without recompute, `level1` and `level2` are",
        "`ORTMODULE_MEMORY_OPT_LEVEL`, and `plan:…` is that plan alone as `ORTMODULE_MEMORY_OPT_CONFIG`. The last two",
        "columns are against `lowtide`; times whose quartiles overlap do not differ.",
    ]
    for model in options.models:
        lines += ["", f"## {model}", "", *table(model, rows)]
    return "\n".join(lines) + "\n"


def main():
    options = arguments()
    rows = measure_in_rounds(list(pairs(options)), options.steps, options.rounds)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    text = document(options, rows)
    print(text)
    if options.write:
        DOCUMENT.write_text(text)
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
