"""The main job: trains a language model on Python's own source files, in PyTorch eager and through lowtide.

    ./dev train [--model gpt2] [--steps N] [--seq N] [--batch N]

Both runs start from the same weights and see the same batches, one step of each in turn. Exit code 1 if the losses of
the first 20 steps differ by more than 1e-4, or if the module ran in PyTorch instead of the engine.
"""

import argparse
import contextlib
import copy
import os
import sys
import threading
import time
from pathlib import Path

# The memory counter lives with the benchmark that it was made for.
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks" / "training"))
from memory_counter import MemoryCounter, counted_environment, is_counted

PEAK_STEP = 3  # the step whose peak is counted: all that is made once has been made
HELD_OUT_BATCHES = 8
STARTED = time.monotonic()


def arguments():
    parser = argparse.ArgumentParser(prog="./dev train", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt2", help="gpt2, bloom or llama (gpt2)")
    parser.add_argument("--steps", type=int, default=100, help="training steps of each run (100)")
    parser.add_argument("--seq", type=int, default=256, help="bytes in a sequence (256)")
    parser.add_argument("--batch", type=int, default=8, help="sequences in a batch (8)")
    parser.add_argument("--lr", type=float, default=1e-3, help="AdamW's learning rate (1e-3)")
    parser.add_argument("--every", type=int, default=20, help="steps between rows of the table (20)")
    parser.add_argument("--seed", type=int, default=0)
    parsed = parser.parse_args()
    if parsed.steps < PEAK_STEP or min(parsed.seq, parsed.batch, parsed.every) < 1:
        parser.error(f"--steps is at least {PEAK_STEP}; --seq, --batch and --every are at least 1")
    return parsed


def say(text):
    print(f"[{time.monotonic() - STARTED:6.1f} s] {text}", flush=True)


@contextlib.contextmanager
def waiting_for(text):
    """Says what is waited for, and every five seconds that it still is."""
    say(text)
    done = threading.Event()

    def tick():
        while not done.wait(5):
            say(f"... still {text}")

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def main():
    options = arguments()
    if not is_counted():  # the counter must be there before the first allocation
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], counted_environment())

    say("importing PyTorch and lowtide")
    import torch
    from data import draw_batch, load_text
    from models import MODELS
    from report import failure, print_table
    from trainee import Trainee
    from transformers.utils import logging

    logging.set_verbosity_error()  # it warns that a model made from a config has no loss_type

    import lowtide
    from lowtide.ortmodule import DebugOptions, ORTModule

    if options.model not in MODELS:
        sys.exit(f"unknown model {options.model}; there are {', '.join(MODELS)}")
    text = load_text()
    say(
        f"text: {len(text.train) / 1e6:.1f} MB of {text.train_files} files to train on, "
        f"{len(text.held_out) / 1e6:.1f} MB of {text.held_out_files} files held out"
    )
    torch.manual_seed(options.seed)
    model = MODELS[options.model](options.seq).train()
    twin = copy.deepcopy(model)
    say(
        f"{options.model}: {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, "
        f"{options.steps} steps of {options.batch} x {options.seq} bytes"
    )
    eager = Trainee("eager", model, model, options.lr)
    lowtide_run = Trainee("lowtide", twin, ORTModule(twin, DebugOptions()), options.lr)
    module = lowtide_run.call
    counter = MemoryCounter()
    planned = None  # of the step whose peak is counted

    generator = torch.Generator().manual_seed(options.seed)
    for step in range(1, options.steps + 1):
        batch = draw_batch(text.train, options.batch, options.seq, generator)
        if step == 1:
            with waiting_for("eager's first step"):
                eager.step(batch)
            with waiting_for("lowtide's first step: export, lowering, gradient graph, memory plan, run"):
                lowtide_run.step(batch)
        elif step == PEAK_STEP:
            eager.measure_peak(batch, counter, release=lambda: None)
            lowtide_run.measure_peak(batch, counter, release=lowtide.release_memory)
            planned = module.memory_report()
        else:
            eager.step(batch)
            lowtide_run.step(batch)
        if step in (1, 2, 5) or step % 10 == 0:
            say(
                f"step {step:4d}/{options.steps}  loss: eager {eager.losses[-1]:.4f}, lowtide "
                f"{lowtide_run.losses[-1]:.4f}   step: eager {eager.step_s[-1] * 1e3:.0f} ms, "
                f"lowtide {lowtide_run.step_s[-1] * 1e3:.0f} ms"
            )
    generator.manual_seed(options.seed)
    held_out = [draw_batch(text.held_out, options.batch, options.seq, generator) for _ in range(HELD_OUT_BATCHES)]
    for trainee in (eager, lowtide_run):
        with waiting_for(f"held-out loss, {trainee.name}"):
            trainee.evaluate(held_out)

    print_table(eager, lowtide_run, planned, options.every)
    reason = failure(eager, lowtide_run, module.fallback_reason)
    print(f"\nFAILED: {reason}" if reason else "\nlowtide trained as eager did")
    return 1 if reason else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
