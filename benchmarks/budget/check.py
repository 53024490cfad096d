"""Forty budgets of one model, from its default plan to its floor, run by __main__.py under the memory counter: prints
one line of JSON with what was asked, planned, measured and predicted, and whether loss and gradients are the bits of
the step without a budget, dropout on."""

import argparse
import json

import torch
from budgeted import BudgetedStep, give_back_memory
from memory_counter import MemoryCounter
from models import build
from verdicts import allowed

BUDGETS = 40
SEED = 5


def measure(model_name):
    model, make_batch = build(model_name)
    batch = make_batch()
    step = BudgetedStep(model, batch)
    counter = MemoryCounter()

    def run():
        """(loss and gradients, the peak)"""
        give_back_memory(model)
        torch.manual_seed(SEED)
        counter.restart()
        loss = step(**batch)
        loss.backward()
        peak_bytes = counter.peak_above()
        return [loss.detach(), *(parameter.grad for parameter in model.parameters())], peak_bytes

    expected = [tensor.clone() for tensor in run()[0]]
    high, low = step.rungs[0]["peak_bytes"], step.rungs[-1]["peak_bytes"]
    rows = []
    for index in range(BUDGETS):
        asked = high - (high - low) * index // (BUDGETS - 1)
        step.set_budget(asked)
        planned = step.planned_peak_bytes()
        row = {"asked_bytes": asked, "planned_bytes": planned, "predicted_ms": step.predicted_ms(asked)}
        if rows and rows[-1]["planned_bytes"] == planned:  # the same plan, which has run
            row |= {key: rows[-1][key] for key in ("measured_bytes", "same_bits")}
        else:
            found, row["measured_bytes"] = run()
            row["same_bits"] = all(torch.equal(bits(a), bits(b)) for a, b in zip(found, expected, strict=True))
            del found
            if row["measured_bytes"] > allowed(planned, 0):  # what is made once for each plan was counted as well
                row["measured_bytes"] = run()[1]
        rows.append(row)
    if reason := step.module.fallback_reason:
        raise RuntimeError(f"runs in PyTorch: {reason}")
    return {"model": model_name, "external_bytes": step.memory_without["external_bytes"], "rows": rows}


def bits(tensor):
    """So that NaN is NaN, and 0 is not -0."""
    return tensor.reshape(-1).view(torch.uint8)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    print("RESULT " + json.dumps(measure(parser.parse_args().model)))
