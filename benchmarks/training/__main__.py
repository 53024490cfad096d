"""Time and memory of training steps: ./dev bench training [--models gpt2,bert] [--modes all] [--json rows.json]

Every measurement runs in a fresh process under a counter of malloc and mmap. Modes take turns, round by round, so that
a disturbance of the machine does not fall on one of them.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from memory_counter import counted_environment
from models import NAMES
from modes import MODES

MEASURE = Path(__file__).with_name("measure.py")
DEFAULT_MODES = "lowtide,eager,eager_kept_heap"


def arguments():
    parser = argparse.ArgumentParser(prog="./dev bench training", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(NAMES), help=f"of {', '.join(NAMES)} (all)")
    parser.add_argument("--modes", default=DEFAULT_MODES, help=f"of {', '.join(MODES)}, or all ({DEFAULT_MODES})")
    parser.add_argument("--steps", type=int, default=5, help="timed steps a process (5)")
    parser.add_argument("--rounds", type=int, default=2, help="processes for each model and mode (2)")
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    parsed = parser.parse_args()
    parsed.models = parsed.models.split(",")
    parsed.modes = list(MODES) if parsed.modes == "all" else parsed.modes.split(",")
    for wanted, known in ((parsed.models, NAMES), (parsed.modes, MODES)):
        if unknown := [name for name in wanted if name not in known]:
            parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    return parsed


def run_once(model, mode, steps, inductor_cache):
    """One fresh process: its result, or {"error": …}."""
    environment = counted_environment({**os.environ, **MODES[mode].environment})
    environment["TORCHINDUCTOR_CACHE_DIR"] = inductor_cache
    command = [sys.executable, str(MEASURE), "--model", model, "--mode", mode, "--steps", str(steps)]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    return {"error": done.stderr.strip()[-2000:] or f"exit code {done.returncode}"}


def merge(model, mode, results):
    """One row from the rounds: times over all of them, the highest peaks, the first process's first step."""
    row = {"model": model, "mode": mode}
    for reason in ("skipped", "error"):
        if found := [result[reason] for result in results if reason in result]:
            return {**row, reason: found[0]}
    times = [ms for result in results for ms in result["step_times_ms"]]
    return {
        **row,
        "step_ms": statistics.median(times),
        "step_ms_min": min(times),
        "step_ms_max": max(times),
        "peak_bytes": max(result["peak_bytes"] for result in results),
        "peak_with_optimizer_bytes": max(result["peak_with_optimizer_bytes"] for result in results),
        "first_step_s": results[0]["first_step_s"],  # later rounds find compiled code in its cache
        "fallback_reason": results[0]["fallback_reason"],
    }


def ratios(row, rows):
    """(times faster than eager, share of eager's peak), or None where eager was not measured."""
    eager = next((r for r in rows if r["model"] == row["model"] and r["mode"] == "eager" and "step_ms" in r), None)
    return eager and (eager["step_ms"] / row["step_ms"], row["peak_bytes"] / eager["peak_bytes"])


def print_table(rows):
    print(f"\n{'model':<9} {'mode':<16} {'step ms  min / median / max':>28} {'speed':>6} {'peak MB':>9} {'share':>6}"
          f" {'with AdamW':>10} {'first s':>8}")  # fmt: skip
    for row in rows:
        start = f"{row['model']:<9} {row['mode']:<16} "
        if "step_ms" not in row:
            print(start + (f"skipped: {row['skipped']}" if "skipped" in row else f"failed: {row['error']}"))
            continue
        found = ratios(row, rows)
        speed, share = (f"{found[0]:.2f}x", f"{found[1]:.2f}") if found else ("", "")
        times = f"{row['step_ms_min']:.0f} / {row['step_ms']:.0f} / {row['step_ms_max']:.0f}"
        print(f"{start}{times:>28} {speed:>6} {row['peak_bytes'] / 1e6:9.1f} {share:>6}"
              f" {row['peak_with_optimizer_bytes'] / 1e6:10.1f} {row['first_step_s']:8.1f}"
              + (f"  ran in PyTorch: {row['fallback_reason']}" if row["fallback_reason"] else ""))  # fmt: skip
    for mode in dict.fromkeys(row["mode"] for row in rows if row["mode"] != "eager"):
        speeds = [f[0] for row in rows if row["mode"] == mode and "step_ms" in row and (f := ratios(row, rows))]
        if len(speeds) > 1:
            mean = math.exp(statistics.mean(math.log(speed) for speed in speeds))
            print(f"{mode}: {mean:.3f}x eager's speed (geometric mean of {len(speeds)} models)")


def main():
    options = arguments()
    results = {(model, mode): [] for model in options.models for mode in options.modes}
    with tempfile.TemporaryDirectory() as caches:
        for number in range(options.rounds):
            for model, mode in results:
                result = run_once(model, mode, options.steps, f"{caches}/{model}-{mode}")
                results[model, mode].append(result)
                outcome = f"{statistics.median(result['step_times_ms']):.0f} ms" if "step_times_ms" in result else "-"
                print(f"round {number + 1}/{options.rounds}  {model} {mode}: {outcome}", file=sys.stderr, flush=True)
    rows = [merge(model, mode, found) for (model, mode), found in results.items()]
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    print_table(rows)
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
