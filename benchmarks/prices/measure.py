"""One measurement in a fresh process, run by __main__.py: prints one line of JSON.

Step times are of forward + backward from zero_grad(set_to_none=True), as ./dev bench training has them. Then as many
steps are traced: of each step of the plan the median counts, summed up by class of kernels and dtype beside what is
predicted.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "training"))
from models import build  # noqa: E402

from lowtide.ortmodule import DebugOptions, ORTModule  # noqa: E402

WARM_UP = 3


def measure(name, steps, calibrated):
    model, make_batch = build(name)
    wrapped, batch = ORTModule(model, DebugOptions()), make_batch()

    def step():
        model.zero_grad(set_to_none=True)
        start = time.perf_counter()
        wrapped(**batch).loss.backward()
        return (time.perf_counter() - start) * 1e3

    for _ in range(WARM_UP):
        step()
    step_times_ms = [step() for _ in range(steps)]
    agent = wrapped._last_agent()
    agent.session.start_trace()
    for _ in range(steps):
        step()
    events = json.loads(agent.session.stop_trace())["traceEvents"]
    return {"step_times_ms": step_times_ms, **by_class(agent, events, calibrated)}


def by_class(agent, events, calibrated):
    """What steps of each class of kernels took beside what is predicted, and those that are computed a second time."""
    durations, names = {}, {}
    for event in events:
        step = event["args"]["step"]
        durations.setdefault(step, []).append(event["dur"] / 1e3)
        names[step] = event["name"]
    nothing = {"steps": 0, "measured": 0.0, "shipped": 0.0, "calibrated": 0.0}
    classes, again = {}, dict(nothing)
    sizes = agent.symbol_values()
    rows = zip(agent.session.step_prices(sizes), agent.session.step_prices(sizes, calibrated), strict=True)
    for shipped, measured in rows:
        step, _, kernels, dtype = shipped[:4]
        sums = [classes.setdefault(f"{kernels} {dtype}", dict(nothing))]
        if "recompute of" in names.get(step, ""):
            sums.append(again)
        for each in sums:
            each["steps"] += 1
            each["measured"] += statistics.median(durations.get(step, [0]))  # left out: no gradient came in
            each["shipped"] += shipped[-1]
            each["calibrated"] += measured[-1]
    return {"classes": classes, "again": again}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--prices", required=True, help="calibrated, as text")
    options = parser.parse_args()
    print("RESULT " + json.dumps(measure(options.model, options.steps, options.prices)))
