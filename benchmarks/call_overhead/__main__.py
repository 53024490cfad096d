"""What a call of ORTModule costs beside its kernels: ./dev bench call_overhead [--calls 400] [--json rows.json]

A BERT of 202 parameters, so small that its kernels hardly count, takes turns with a bare torch.autograd.Function of
the same tensors: the same parameters as arguments, outputs of the same sizes, gradients that are there already. The
overhead of a call is its time, less the engine's kernels in it, less the bare call beside it. "checks" are what they
add to a forward: its time less that of one which is given the last call's answer. Alone they cost more, since the
rest of a call would fetch much of what they look at. All but "checks again", which come at once after "checks alone",
begin with caches that a backward has emptied.
"""

import argparse
import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import torch
import transformers

from lowtide.ortmodule import ORTModule

# Limits in microseconds, and the bare call beside which each was set, on another machine: by its time there and here a
# row is scaled to that machine.
LIMITS = {
    "checks": (40, "bare forward"),
    "forward overhead": (100, "bare forward"),
    "backward overhead": (150, "bare backward"),
}
BARE_THERE = {"bare forward": 96, "bare backward": 700}


class Bare(torch.autograd.Function):
    """Hands its tensors to autograd and back, and nothing else."""

    @staticmethod
    def forward(ctx, outputs, gradients, *parameters):
        ctx.gradients = gradients
        return tuple(torch.empty(size) for size in outputs)

    @staticmethod
    def backward(ctx, *_):
        gradients, ctx.gradients = ctx.gradients, None
        return None, None, *gradients


def bert():
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=8, num_hidden_layers=12, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.BertForMaskedLM(config).train()
    assert len(list(model.parameters())) == 202
    ids = torch.randint(0, 64, (1, 4))
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def timed(function, *arguments):
    begin = time.perf_counter_ns()
    result = function(*arguments)
    return result, (time.perf_counter_ns() - begin) / 1e3


def measure(calls):
    """{row: microseconds of each call}."""
    model, batch = bert()
    wrapped = ORTModule(model)
    loss = wrapped(**batch).loss
    loss.backward()
    assert wrapped.fallback_reason is None, wrapped.fallback_reason
    manager = wrapped._training_manager
    session, transition = manager.last_agent.session, manager._graph_transition_manager
    parameters = list(model.parameters())
    kinds = [p.grad.shape for p in parameters]
    sizes = [(), (*batch["input_ids"].shape, 64)]
    rows = {}

    def note(row, microseconds):
        rows.setdefault(row, []).append(microseconds)

    for call in range(calls + calls // 10):
        model.zero_grad(set_to_none=True)
        _, alone = timed(transition.prepare, (), batch)
        answer, again = timed(transition.prepare, (), batch)
        wrapped(**batch).loss.backward()
        model.zero_grad(set_to_none=True)
        transition.prepare_like_last = lambda *_, answer=answer: answer
        loss, unchecked = timed(lambda: wrapped(**batch).loss)
        unchecked -= session.last_steps_ns / 1e3
        del transition.prepare_like_last, answer
        loss.backward()
        model.zero_grad(set_to_none=True)
        loss, forward = timed(lambda: wrapped(**batch).loss)
        forward_kernels = session.last_steps_ns / 1e3
        _, backward = timed(loss.backward)
        backward_kernels = session.last_steps_ns / 1e3
        model.zero_grad(set_to_none=True)
        bare = partial(Bare.apply, sizes, [torch.empty(kind) for kind in kinds])
        outputs, bare_forward = timed(bare, *parameters)
        del bare
        _, bare_backward = timed(outputs[0].backward)
        if call < calls // 10:
            continue  # warm-up
        note("checks", forward - forward_kernels - unchecked)
        note("checks alone", alone)
        note("checks again", again)
        note("forward", forward)
        note("forward kernels", forward_kernels)
        note("bare forward", bare_forward)
        note("forward overhead", forward - forward_kernels - bare_forward)
        note("backward", backward)
        note("backward kernels", backward_kernels)
        note("bare backward", bare_backward)
        note("backward overhead", backward - backward_kernels - bare_backward)
    return rows


def main():
    parser = argparse.ArgumentParser(prog="./dev bench call_overhead", description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=400, help="timed calls (400)")
    parser.add_argument("--json", metavar="FILE", help="write medians and quartiles there, in microseconds")
    options = parser.parse_args()
    table = {}
    print(f"\n{'microseconds a call':<20} {'median':>8} {'quartiles':>19} {'scaled':>9} {'limit':>7}")
    for row, times in measure(options.calls).items():
        low, median, high = statistics.quantiles(times, n=4)
        table[row] = {"median": median, "low": low, "high": high}
    for row, times in table.items():
        verdict = ""
        if row in LIMITS:
            limit, bare = LIMITS[row]
            times["scaled"] = times["median"] * BARE_THERE[bare] / table[bare]["median"]
            verdict = f"{times['scaled']:9.1f} {limit:7} {'kept' if times['scaled'] <= limit else 'EXCEEDED'}"
        print(f"{row:<20} {times['median']:8.1f} {times['low']:9.1f} {times['high']:9.1f} {verdict}")
    if options.json:
        Path(options.json).write_text(json.dumps(table, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
