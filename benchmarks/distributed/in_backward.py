"""One process, started by torchrun under the memory counter: what a step needs whose optimizer's update runs in
backward, in hooks that drop each gradient. Leaves a file of JSON; all bytes are above parameters."""

import argparse
import json
from pathlib import Path

import torch
from measure import release_caches
from memory_counter import MemoryCounter
from models import build
from modes import find_mode

WARM_UP = 2  # in the second, a plan gives the bytes of gradients that are used up to the rest of backward


def measure(model_name, mode_name):
    model, make_batch = build(model_name)
    call, batch, counter = find_mode(mode_name).wrap(model), make_batch(), MemoryCounter()
    parameters, order = [each for each in model.parameters() if each.requires_grad], []

    def clear():
        for parameter in parameters:
            parameter.grad = None

    def peak():
        for _ in range(WARM_UP):
            clear()
            call(**batch).loss.backward()
        clear()
        order.clear()
        release_caches()
        counter.restart()
        outputs = call(**batch)
        stash = counter.live_above()
        loss = outputs.loss
        del outputs  # as in call(**batch).loss.backward()
        loss.backward()
        return counter.peak_above(), stash

    def update(parameter):
        with torch.no_grad():
            parameter.add_(parameter.grad, alpha=-1e-4)
        order.append(parameter.grad.nbytes)
        parameter.grad = None

    kept_peak, _ = peak()
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(update)
    updated_peak, stash = peak()
    return {
        "kept_bytes": kept_peak,
        "updated_bytes": updated_peak,
        "stash_bytes": stash,
        "gradients_bytes": sum(order),
        "bucket_bytes": max(buckets(call, order)),
        "fallback_reason": getattr(call, "fallback_reason", None),
    }


def buckets(call, order):
    """Bytes of each, of gradients in the order in which they leave; eager's buckets are single gradients."""
    manager = getattr(call, "_training_manager", None)
    if manager is None:
        return order
    left = iter(order)
    return [sum(next(left) for _ in gradients) for gradients, *_ in manager.last_agent.session.backward_regions(0)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("model", "mode", "folder"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    found = measure(arguments.model, arguments.mode)
    Path(arguments.folder, "rank0.json").write_text(json.dumps(found))
