"""torch.compile at one activation_memory_budget beside eager, in turns, run by __main__.py under the memory counter:
prints one line of JSON."""

import argparse
import json
import time

import torch
from models import build
from ways import Way, loss_of, take_turns, warm_up


def measure(model_name, budget, rounds, steps):
    import torch._functorch.config as config

    config.activation_memory_budget = budget
    model, make_batch = build(model_name)
    batch = make_batch()
    compiled = torch.compile(loss_of(model))  # the loss alone, as ours
    begin = time.perf_counter()
    compiled(**batch).backward()
    first_step_s = time.perf_counter() - begin
    ways = [Way("eager", loss_of(model), model), Way("compile", compiled, model)]
    warm_up(ways, batch)
    take_turns(ways, batch, rounds, steps)
    rows = [{"way": way.name, "peak_bytes": way.peak_bytes, "times_ms": way.times_ms} for way in ways]
    return {"model": model_name, "budget": budget, "first_step_s": first_step_s, "rows": rows}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--budget", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    print("RESULT " + json.dumps(measure(options.model, options.budget, options.rounds, options.steps)))
