"""What the memory optimizer's own work costs on a deep model: ./dev bench analysis [--layers 48] [--rounds 5]

Seconds for analysis and rewriting (levels 1 and 2), and milliseconds for each planned peak of the column "Peak after",
on a GPT-2 with that many layers.
"""

import argparse
import os
import statistics
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from lowtide.capture import capture
from lowtide.ortmodule.training_agent import TrainingAgent


def arguments():
    parser = argparse.ArgumentParser(prog="./dev bench analysis", description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5, help="of each measurement; medians are told (5)")
    return parser.parse_args()


def captured_gpt2(layers):
    config = GPT2Config(
        n_layer=layers,
        n_embd=64,
        n_head=4,
        vocab_size=256,
        n_positions=64,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    ids = torch.randint(0, 256, (2, 32))
    return model, capture(model, (), {"input_ids": ids, "labels": ids})


def told(seconds, unit, factor):
    low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
    return f"{middle * factor:.0f} {unit} ({low * factor:.0f} to {high * factor:.0f})"


def main():
    options = arguments()
    model, captured = captured_gpt2(options.layers)
    for level in (1, 2):
        os.environ["ORTMODULE_MEMORY_OPT_LEVEL"] = str(level)
        times = [
            TrainingAgent(model, captured, True).session.report["seconds"]["memory"] for _ in range(options.rounds)
        ]
        print(f"level {level}: analysis and rewriting {told(times, 'ms', 1000)}")
    del os.environ["ORTMODULE_MEMORY_OPT_LEVEL"]
    agent = TrainingAgent(model, captured, True)
    per_row = []
    for _ in range(options.rounds):
        seconds, planned = [], []
        for peaks in (False, True):
            begin = time.perf_counter()
            planned.append(agent.memory_stat(peaks=peaks)["planned"])
            seconds.append(time.perf_counter() - begin)
        rows = planned[1] - planned[0]
        per_row.append((seconds[1] - seconds[0]) / rows)
    print(f"Peak after: {told(per_row, 'ms', 1000)} a row, {rows} different rows of both tables")


main()
