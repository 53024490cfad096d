"""What the plans of a model's training step need, run by __main__.py: prints one line of JSON. Two steps run, whatever
else the machine does changes nothing of it."""

import argparse
import json

from budgeted import BudgetedStep
from models import build
from modes import find_mode


def measure(model_name):
    model, make_batch = build(model_name)
    batch = make_batch()
    engine = find_mode("lowtide").wrap(model)
    engine(**batch)
    default = engine.memory_report()["planned_peak_bytes"]
    step = BudgetedStep(model, batch)
    rungs = [{key: rung[key] for key in ("peak_bytes", "predicted_ms")} for rung in step.rungs]
    gradient_bytes = step.memory_without["gradient_bytes"]
    return {"model": model_name, "default_peak_bytes": default, "gradient_bytes": gradient_bytes, "rungs": rungs}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    print("RESULT " + json.dumps(measure(parser.parse_args().model)))
