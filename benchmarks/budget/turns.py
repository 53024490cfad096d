"""All ways of one model in one process, run by __main__.py under the memory counter: prints one line of JSON."""

import argparse
import json
import sys
from pathlib import Path

import torch
from models import build
from others import Others
from ways import take_turns, warm_up, ways_of

from lowtide.store.prices import measured_prices

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))
from page import cpu  # noqa: E402


def measure(model_name, names, rounds, steps):
    model, make_batch = build(model_name)
    batch = make_batch()
    ways = list(ways_of(model, model_name, batch, names))
    warm_up(ways, batch)
    with Others() as others:
        take_turns(ways, batch, rounds, steps)
    rows = [{"way": way.name, "peak_bytes": way.peak_bytes, "times_ms": way.times_ms, **way.facts} for way in ways]
    return {
        "model": model_name,
        "cores": torch.get_num_threads(),
        "others": others.share,
        "processor": cpu(),
        "calibrated": bool(measured_prices()),
        "rows": rows,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--ways", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    print("RESULT " + json.dumps(measure(options.model, options.ways.split(","), options.rounds, options.steps)))
