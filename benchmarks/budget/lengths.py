"""Batches of lengths drawn from 64 to 1,024 under one budget, run by __main__.py under the memory counter: prints one
line of JSON. The budget is half of what eager needs for the longest."""

import argparse
import gc
import json
import random

import torch
from budgeted import BudgetedStep, give_back_memory
from memory_counter import MemoryCounter
from models import build

import lowtide

SHORTEST, LONGEST = 64, 1024
BATCHES = 24
OF_EAGER = 0.5


def measure(model_name):
    model, make_batch = build(model_name)
    counter = MemoryCounter()

    def peak_of(call, batch):
        """Above what is there before, but for what the pool has free: that is of steps before, and counts."""
        model.zero_grad(set_to_none=True)
        gc.collect()
        left = lowtide.pool_bytes()["free_bytes"]
        counter.restart()
        call(batch)
        return left + counter.peak_above()

    eager = peak_of(lambda batch: model(**batch).loss.backward(), make_batch(length=LONGEST))
    budget = int(OF_EAGER * eager)
    step = BudgetedStep(model, make_batch(length=256))
    without = {}
    lengths = [LONGEST, *random.Random(0).choices(range(SHORTEST, LONGEST + 1), k=BATCHES - 1)]
    random.Random(1).shuffle(lengths)
    sizes = {length: [length if size == 256 else size for size in step.values] for length in lengths}
    for length in lengths:
        without[length] = step.planned_peak_bytes(sizes[length])
    step.set_budget(budget)
    rows = []

    def one_step(batch):
        step(**batch).backward()

    give_back_memory(model)
    for length in lengths:
        batch = make_batch(length=length)
        _, measured = [peak_of(one_step, batch) for _ in range(2)]  # what is kept for a size is made the first time
        rows.append({
            "length": length,
            "without_bytes": without[length],
            "planned_bytes": step.planned_peak_bytes(sizes[length]),
            "measured_bytes": measured,
        })  # fmt: skip
    return {
        "model": model_name,
        "budget_bytes": budget,
        "eager_longest_bytes": eager,
        "transitions": step.transitions(),
        "fallback_reason": step.module.fallback_reason,
        "rows": rows,
    }


if __name__ == "__main__":
    torch.manual_seed(0)
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    print("RESULT " + json.dumps(measure(parser.parse_args().model)))
