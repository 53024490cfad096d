"""One measurement in a fresh process, run by __main__.py under the memory counter: prints one line of JSON.

A step is forward + backward from zero_grad(set_to_none=True). Its peak is counted above what is live before it
(weights, optimizer state, inputs, code), after caches that outlive a step were given back; so gradients are in it, and
so is an arena. The second peak is of the same step followed by a fused AdamW.
"""

import argparse
import gc
import json
import sys
import time

import torch
from memory_counter import MemoryCounter
from models import build
from modes import NotApplicable, find_mode

WARM_UP = 2  # the first step exports or compiles, the second makes what is kept between steps


def release_caches():
    """Gives back what is kept from step to step, so that the next step's peak holds all it uses."""
    gc.collect()
    if lowtide := sys.modules.get("lowtide"):
        lowtide.release_memory()


def measure(model_name, mode_name, steps):
    model, make_batch = build(model_name)
    mode, batch = find_mode(mode_name), make_batch()
    if mode.precision == "bf16":
        model.to(torch.bfloat16)
        batch = {name: x.to(torch.bfloat16) if x.is_floating_point() else x for name, x in batch.items()}
    try:
        call = mode.wrap(model)
    except NotApplicable as reason:
        return {"skipped": str(reason)}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=mode.precision == "autocast"):
            loss = call(**batch).loss
        loss.backward()
        return time.perf_counter() - start

    first_step_s = step()
    optimizer.step()
    for _ in range(WARM_UP - 1):
        step()
        optimizer.step()
    step_ms = []
    for _ in range(steps):
        step_ms.append(step() * 1e3)
        optimizer.step()

    counter = MemoryCounter()

    def peak(work):
        optimizer.zero_grad(set_to_none=True)
        release_caches()
        counter.restart()
        work()
        return counter.peak_above()

    def whole_step():
        step()
        optimizer.step()

    return {
        "step_times_ms": step_ms,
        "first_step_s": first_step_s,
        "peak_bytes": peak(step),
        "peak_with_optimizer_bytes": peak(whole_step),
        "fallback_reason": getattr(call, "fallback_reason", None),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--mode", required=True)
    parser.add_argument("--steps", type=int, required=True)
    arguments = parser.parse_args()
    print("RESULT " + json.dumps(measure(arguments.model, arguments.mode, arguments.steps)))
