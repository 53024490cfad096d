"""What the scripts of one rank share: models of several buckets of gradients, comparisons, the end of a process."""

import gc
import sys

import torch
import zoo_sizes

if sys.argv[1:2] != ["resnet"]:  # which would be slow
    zoo_sizes.HIDDEN = 192  # gradients of several buckets

import zoo  # noqa: E402, F401

STEPS = 20
LARGE = {"batch": 12, "length": 48}  # activations count beside gradients


def assert_same(found, expected, tolerance=1e-6):
    for ours, theirs in zip(found, expected, strict=True):
        # transformers computes gpt2's loss in f32, whose rounding is a part of the largest entries; biases of keys are
        # nothing but rounding.
        atol = max(tolerance * float(theirs.abs().max()), 1e-12)
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=atol)


def assert_as_near(found, other, exact, start):
    """bf16 keeps 8 bits: `found` may be three times as far from `exact` as `other` is. `start`: before all steps."""
    for ours, theirs, true, before in zip(found, other, exact, start, strict=True):
        ours, theirs, true, before = (tensor.double() for tensor in (ours, theirs, true, before))
        limit = 3 * max((theirs - true).norm(), 2.0**-9 * (true - before).norm())
        distance = (ours - true).norm()
        assert distance <= limit, f"{distance:.1e} from the exact result, {limit:.1e} is rounding"


def run_cases(run_case):
    """Of the command line: a model, then cases."""
    name, *cases = sys.argv[1:]
    torch.set_num_threads(1)
    for case in cases:
        run_case(name, case)
        print(f"{name} {case}: right on rank {torch.distributed.get_rank()}", flush=True)
    gc.collect()  # PyTorch may hang where a DistributedDataParallel is freed behind its group
    torch.distributed.destroy_process_group()
