"""One rank of one measurement, started by torchrun under the memory counter: leaves a file of JSON.

A step is forward, backward and the optimizer's update, from the moment at which all ranks are ready. Peaks are counted
above what is live before the step (weights, optimizer state, the wrapper's own buffers), after caches that outlive a
step were given back: of forward and backward, and of the whole step.
"""

import argparse
import gc
import json
import statistics
import time
from pathlib import Path

import torch
from measure import release_caches
from memory_counter import MemoryCounter
from models import build
from modes import find_mode
from others import Others
from sent import sent_bytes
from traffic import Traffic
from wrappers import WRAPPERS

WARM_UP = 3  # exports, makes what is kept between steps, and lets DistributedDataParallel order its buckets


def measure(model_name, wrapper_name, mode_name, steps):
    torch.distributed.init_process_group("gloo")
    model, make_batch = build(model_name)
    trained = WRAPPERS[wrapper_name](model, find_mode(mode_name).wrap)
    torch.manual_seed(torch.distributed.get_rank())
    batch = make_batch()

    def timed(work):
        start = time.perf_counter()
        work()
        return (time.perf_counter() - start) * 1e3

    def step():
        """Milliseconds of forward and backward, and of all."""
        trained.clear()
        torch.distributed.barrier()
        before_update = timed(lambda: trained.forward_backward(batch))
        return before_update, before_update + timed(trained.update)

    for _ in range(WARM_UP):
        step()
    before = sent_bytes()
    with Others() as others:
        times = [step() for _ in range(steps)]
    result = {
        "processor_s": [others.total, others.busy, others.own],
        "step_times_ms": [whole for _, whole in times],
        "sent_bytes": (sent_bytes() - before) // steps,
        **peaks(trained, batch),
        "fallback_reason": getattr(trained.module, "fallback_reason", None),
    }
    if trained.without_communication is not None:
        alone = []
        for _ in range(steps):
            trained.clear()
            torch.distributed.barrier()
            with trained.without_communication():
                alone.append(timed(lambda: trained.forward_backward(batch)))
        result["alone_ms"] = statistics.median(alone)
        result["together_ms"] = statistics.median(before_update for before_update, _ in times)
        torch.distributed.barrier()
        result["exchange_ms"] = timed(lambda: exchange(model))
    return {**result, **watched(trained, batch, steps)}


def watched(trained, batch, steps):
    """What travels in a step, and what of it is hidden. Apart from the steps that are timed: watching takes time."""
    traffic = Traffic()
    if isinstance(trained.outer, torch.nn.parallel.DistributedDataParallel):
        trained.outer.register_comm_hook(None, traffic.send_bucket)
    for _ in range(steps):
        trained.clear()
        torch.distributed.barrier()
        with traffic:
            trained.forward_backward(batch)
            traffic.backward_ended()
            trained.update()
    return {name: ms / steps for name, ms in traffic.figures().items()}


def peaks(trained, batch):
    trained.clear()
    release_caches()
    torch.distributed.barrier()
    counter = MemoryCounter()
    trained.forward_backward(batch)
    found = {"peak_bytes": counter.peak_above()}
    trained.update()
    return {**found, "peak_with_optimizer_bytes": counter.peak_above()}


def exchange(model):
    """All gradients, in buckets of 25 MiB, with nothing beside it."""
    bucket = torch.zeros(25 << 18)
    left = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    while left > 0:
        torch.distributed.all_reduce(bucket[: min(left, bucket.numel())])
        left -= bucket.numel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("model", "wrapper", "mode", "folder"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--steps", type=int, required=True)
    arguments = parser.parse_args()
    result = measure(arguments.model, arguments.wrapper, arguments.mode, arguments.steps)
    rank = torch.distributed.get_rank()
    Path(arguments.folder, f"rank{rank}.json").write_text(json.dumps(result))
    gc.collect()  # PyTorch may hang where a DistributedDataParallel is freed behind its group
    torch.distributed.destroy_process_group()
