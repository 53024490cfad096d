"""What statistics cost: ./dev bench statistics [--models gpt2] [--eager] [--json rows.json]

Steps with StatisticsSubscriber on every module and steps without take turns, each time in a fresh process, measured as
./dev bench training measures. The statistics are computed and written in every step.
"""

import argparse
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "training"))
from models import NAMES  # noqa: E402
from rounds import measure_in_rounds  # noqa: E402

MOST_TIME, MOST_BYTES = 0.10, 64e6  # of a step of gpt2, and of its peak


def arguments():
    parser = argparse.ArgumentParser(prog="./dev bench statistics", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="gpt2", help=f"of {', '.join(NAMES)} (gpt2)")
    parser.add_argument("--eager", action="store_true", help="measure PyTorch with and without them too")
    parser.add_argument("--steps", type=int, default=5, help="timed steps a process (5)")
    parser.add_argument("--rounds", type=int, default=3, help="processes for each model and mode (3)")
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    parsed = parser.parse_args()
    parsed.models = parsed.models.split(",")
    if unknown := [name for name in parsed.models if name not in NAMES]:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(NAMES)}")
    return parsed


def main():
    options = arguments()
    couples = [("lowtide", "statistics")] + ([("eager", "eager_statistics")] if options.eager else [])
    pairs = [(model, mode) for model in options.models for couple in couples for mode in couple]
    load = os.getloadavg()[0]
    rows = measure_in_rounds(pairs, options.steps, options.rounds)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    found = {(row["model"], row["mode"]): row for row in rows}
    print(f"\nload of the machine before: {load:.1f}, after: {os.getloadavg()[0]:.1f}")
    print(f"asked of gpt2 in the engine: at most {MOST_TIME:.0%} of the step and {MOST_BYTES / 1e6:.0f} MB of peak")
    print(f"{'model':<9} {'mode':<8} {'step ms':>9} {'with':>9} {'more':>7} {'peak MB':>9} {'with':>9} {'more MB':>8}")
    failed = False
    for model in options.models:
        for plain, with_statistics in couples:
            a, b = found[model, plain], found[model, with_statistics]
            if "step_ms" not in a or "step_ms" not in b:
                print(f"{model:<9} {plain:<8} failed: {a.get('error') or b.get('error')}")
                failed = True
                continue
            # The fastest steps: what other work on the machine adds is not the statistics'.
            times = a["step_ms_min"], b["step_ms_min"]
            peaks = a["peak_bytes"] / 1e6, b["peak_bytes"] / 1e6
            print(f"{model:<9} {plain:<8} {times[0]:9.1f} {times[1]:9.1f} {times[1] / times[0] - 1:7.1%}"
                  f" {peaks[0]:9.1f} {peaks[1]:9.1f} {peaks[1] - peaks[0]:8.1f}"
                  + (f"  ran in PyTorch: {b['fallback_reason']}" if b["fallback_reason"] else ""))  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
