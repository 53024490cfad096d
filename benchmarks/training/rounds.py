"""Measurements in rounds: every pair of model and mode takes turns, each time in a fresh process under a counter of
malloc and mmap, so that a disturbance of the machine does not fall on one of them."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from memory_counter import counted_environment
from modes import find_mode

MEASURE = Path(__file__).with_name("measure.py")


def measure_in_rounds(pairs, steps, rounds):
    """One row for each (model, mode)."""
    results = {pair: [] for pair in pairs}
    with tempfile.TemporaryDirectory() as caches:
        for number in range(rounds):
            for index, (model, mode) in enumerate(results):
                result = run_once(model, mode, steps, f"{caches}/{index}")
                results[model, mode].append(result)
                outcome = f"{statistics.median(result['step_times_ms']):.0f} ms" if "step_times_ms" in result else "-"
                print(f"round {number + 1}/{rounds}  {model} {mode}: {outcome}", file=sys.stderr, flush=True)
    return [merge(model, mode, found) for (model, mode), found in results.items()]


def run_once(model, mode, steps, inductor_cache):
    """One fresh process: its result, or {"error": …}."""
    # A mode says by itself what the memory optimizer is asked for.
    asking = ("ORTMODULE_MEMORY_OPT_", "LOWTIDE_MEMORY_BUDGET")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(asking)}
    environment = counted_environment({**inherited, **find_mode(mode).environment})
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
    low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
    return {
        **row,
        "step_ms": statistics.median(times),
        "step_ms_low": low,  # quartiles
        "step_ms_high": high,
        "step_ms_min": min(times),
        "step_ms_max": max(times),
        "peak_bytes": max(result["peak_bytes"] for result in results),
        "peak_with_optimizer_bytes": max(result["peak_with_optimizer_bytes"] for result in results),
        "first_step_s": results[0]["first_step_s"],  # later rounds find compiled code in its cache
        "fallback_reason": results[0]["fallback_reason"],
    }
