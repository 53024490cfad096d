"""What a call of ORTModule costs beside its kernels: ./dev bench call_overhead [--calls 400] [--steps 6] [--json FILE]

A step (forward and backward) takes turns with one of a bare torch.autograd.Function of the same tensors: the same
parameters as arguments, outputs of the same sizes, gradients that are there already. The overhead of a step is its
time, less the engine's kernels in it, less the bare step beside it: checks of the guards, binding, autograd.

- A BERT of 202 parameters, so small that its kernels hardly count, `--calls` times: at most 1 ms.
- The six models of `./dev bench training`, `--steps` times each: at most 0.5 % of the model's step.

Fails where a median exceeds its limit. "checks" are the guards alone, with caches that a backward has emptied.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "training"))
import models  # noqa: E402

MOST_MICROSECONDS = 1000
MOST_OF_A_STEP = 0.005


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


def small_bert():
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=8, num_hidden_layers=12, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.BertForMaskedLM(config).train()
    assert len(list(model.parameters())) == 202
    ids = torch.randint(0, 64, (1, 4))
    return model, lambda: {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def timed(function, *arguments):
    begin = time.perf_counter_ns()
    result = function(*arguments)
    return result, (time.perf_counter_ns() - begin) / 1e3


def measure(model, batch, calls):
    """{row: microseconds of each call}, after one call in ten that is not counted."""
    wrapped = ORTModule(model)
    output = wrapped(**batch)
    output.loss.backward()
    assert wrapped.fallback_reason is None, wrapped.fallback_reason
    manager = wrapped._training_manager
    session, transition = manager.last_agent.session, manager._graph_transition_manager
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    shapes = [parameter.grad.shape for parameter in parameters]
    sizes = [tensor.shape for tensor in output.values() if isinstance(tensor, torch.Tensor)]
    del output
    rows = {}
    for call in range(calls + max(1, calls // 10)):
        model.zero_grad(set_to_none=True)
        _, checks = timed(transition.prepare, (), batch)
        loss, forward = timed(lambda: wrapped(**batch).loss)
        forward_kernels = session.last_steps_ns / 1e3
        _, backward = timed(loss.backward)
        backward_kernels = session.last_steps_ns / 1e3
        model.zero_grad(set_to_none=True)
        bare = partial(Bare.apply, sizes, [torch.empty(shape) for shape in shapes])
        outputs, bare_forward = timed(bare, *parameters)
        del bare
        _, bare_backward = timed(outputs[0].backward)
        found = {
            "checks": checks,
            "forward": forward - forward_kernels - bare_forward,
            "backward": backward - backward_kernels - bare_backward,
            "bare": bare_forward + bare_backward,
            "step": forward + backward,
        }
        found["overhead"] = found["forward"] + found["backward"]
        if call >= max(1, calls // 10):
            for row, microseconds in found.items():
                rows.setdefault(row, []).append(microseconds)
    quartiles = {row: statistics.quantiles(found, n=4) for row, found in rows.items()}
    return {row: {"low": low, "median": median, "high": high} for row, (low, median, high) in quartiles.items()}


def main():
    parser = argparse.ArgumentParser(prog="./dev bench call_overhead", description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=400, help="timed steps of the small BERT (400)")
    parser.add_argument("--steps", type=int, default=6, help="timed steps of each large model (6); 0: none")
    parser.add_argument("--json", metavar="FILE", help="write medians and quartiles there, in microseconds")
    options = parser.parse_args()
    tables, exceeded = {}, []
    runs = [("bert of 202 parameters", small_bert, options.calls)]
    runs += [(name, partial(models.build, name), options.steps) for name in models.NAMES if options.steps > 1]
    print(f"\n{'microseconds, median':<24} {'checks':>8} {'forward':>9} {'backward':>9} {'bare':>8} {'overhead':>22}")
    for name, build, calls in runs:
        torch.manual_seed(0)
        model, make_batch = build()
        table = tables[name] = measure(model.train(), make_batch(), calls)
        overhead, step = table["overhead"], table["step"]["median"]
        limit = MOST_MICROSECONDS if build is small_bert else MOST_OF_A_STEP * step
        kept = overhead["median"] <= limit
        exceeded += [] if kept else [name]
        figures = " ".join(f"{table[row]['median']:{width}.0f}" for row, width in
                           (("checks", 8), ("forward", 9), ("backward", 9), ("bare", 8)))  # fmt: skip
        spread = f"{overhead['median']:.0f} ({overhead['low']:.0f} to {overhead['high']:.0f})"
        verdict = f"limit {limit:.0f}: {'kept' if kept else 'EXCEEDED'}, {overhead['median'] / step:.2%} of a step"
        print(f"{name:<24} {figures} {spread:>22}  {verdict}", flush=True)
        del model
    if options.json:
        Path(options.json).write_text(json.dumps(tables, indent=1) + "\n")
    if exceeded:
        print(f"exceeded: {', '.join(exceeded)}")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
