"""Time and memory of training steps: ./dev bench training [--models gpt2,bert] [--modes all] [--json rows.json]

Modes take turns, round by round, each time in a fresh process (rounds.py).
"""

import argparse
import json
import math
import statistics
import sys
from pathlib import Path

from models import FURTHER, NAMES
from modes import MODES, is_mode, split_modes, split_precision
from rounds import measure_in_rounds

DEFAULT_MODES = "lowtide,loss,eager,eager_kept_heap"


def arguments():
    parser = argparse.ArgumentParser(prog="./dev bench training", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models", default=",".join(NAMES), help=f"of {', '.join(NAMES)} (these), {', '.join(FURTHER)}"
    )
    parser.add_argument(
        "--modes",
        default=DEFAULT_MODES,
        help=f"of {', '.join(MODES)}, plan:CONFIG, budget:BYTES, each also as bf16:MODE or autocast:MODE, "
        f"or all ({DEFAULT_MODES})",
    )
    parser.add_argument("--steps", type=int, default=5, help="timed steps a process (5)")
    parser.add_argument("--rounds", type=int, default=2, help="processes for each model and mode (2)")
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    parsed = parser.parse_args()
    parsed.models = parsed.models.split(",")
    parsed.modes = list(MODES) if parsed.modes == "all" else split_modes(parsed.modes)
    models = (*NAMES, *FURTHER)
    for wanted, is_known, known in ((parsed.models, models.__contains__, models), (parsed.modes, is_mode, MODES)):
        if unknown := [name for name in wanted if not is_known(name)]:
            parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    return parsed


def ratios(row, rows):
    """(times faster than eager in the same precision, share of its peak), or None where that was not measured."""
    wanted = (row["model"], split_precision(row["mode"])[0] + "eager")
    eager = next((r for r in rows if (r["model"], r["mode"]) == wanted and "step_ms" in r), None)
    return eager and (eager["step_ms"] / row["step_ms"], row["peak_bytes"] / eager["peak_bytes"])


def print_table(rows):
    print(f"\n{'model':<9} {'mode':<18} {'step ms  min / median / max':>28} {'speed':>6} {'peak MB':>9} {'share':>6}"
          f" {'with AdamW':>10} {'first s':>8}")  # fmt: skip
    for row in rows:
        start = f"{row['model']:<9} {row['mode']:<18} "
        if "step_ms" not in row:
            print(start + (f"skipped: {row['skipped']}" if "skipped" in row else f"failed: {row['error']}"))
            continue
        found = ratios(row, rows)
        speed, share = (f"{found[0]:.2f}x", f"{found[1]:.2f}") if found else ("", "")
        times = f"{row['step_ms_min']:.0f} / {row['step_ms']:.0f} / {row['step_ms_max']:.0f}"
        print(f"{start}{times:>28} {speed:>6} {row['peak_bytes'] / 1e6:9.1f} {share:>6}"
              f" {row['peak_with_optimizer_bytes'] / 1e6:10.1f} {row['first_step_s']:8.1f}"
              + (f"  ran in PyTorch: {row['fallback_reason']}" if row["fallback_reason"] else ""))  # fmt: skip
    for mode in dict.fromkeys(row["mode"] for row in rows if not row["mode"].endswith("eager")):
        speeds = [f[0] for row in rows if row["mode"] == mode and "step_ms" in row and (f := ratios(row, rows))]
        if len(speeds) > 1:
            mean = math.exp(statistics.mean(math.log(speed) for speed in speeds))
            print(f"{mode}: {mean:.3f}x eager's speed (geometric mean of {len(speeds)} models)")


def main():
    options = arguments()
    pairs = [(model, mode) for model in options.models for mode in options.modes]
    rows = measure_in_rounds(pairs, options.steps, options.rounds)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    print_table(rows)
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
