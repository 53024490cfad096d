"""What a call at sizes that were never seen takes beyond its step, under a budget, run by __main__.py: prints one line
of JSON. It is the processor's time of choosing a plan and binding it, so other work on the machine does not count."""

import argparse
import json
import time

from budgeted import BudgetedStep
from models import build

SCALES = (0.25, 0.5, 0.75, 0.9, 1.1)  # of the last free size


def measure(model_name):
    model, make_batch = build(model_name)
    step = BudgetedStep(model, make_batch())
    step.set_budget((step.rungs[0]["peak_bytes"] + step.rungs[-1]["peak_bytes"]) // 2)
    step.planned_peak_bytes()
    rows = []
    for scale in SCALES:
        values = [*step.values[:-1], max(1, round(step.values[-1] * scale))]
        if values == step.values:
            continue
        rows.append({"values": values, "ms": processor_ms(step, values), "again_ms": processor_ms(step, values)})
    return {"model": model_name, "symbols": step.session.symbols, "plans": len(step.rungs), "rows": rows}


def processor_ms(step, values):
    begin = time.process_time()
    step.planned_peak_bytes(values)
    return (time.process_time() - begin) * 1e3


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    print("RESULT " + json.dumps(measure(parser.parse_args().model)))
