"""What the scripts of one rank share: models of several buckets of gradients, the end of a process."""

import gc
import sys

import torch
import zoo_sizes

if sys.argv[1:2] != ["resnet"]:  # which would be slow
    zoo_sizes.HIDDEN = 192  # gradients of several buckets

import zoo  # noqa: E402
from comparisons import assert_as_near, assert_same  # noqa: E402, F401
from exact_norms import sum_norms_in_their_dtype  # noqa: E402
from levels import memory_level, recomputes  # noqa: E402, F401

STEPS = 20
LARGE = {"batch": 12, "length": 48}  # activations count beside gradients


def build(name, dtype, dropout=0.0):
    model, make_batch = zoo.build(name, dropout=dropout, dtype=dtype)
    sum_norms_in_their_dtype(model)
    return model, make_batch


def run_cases(run_case):
    """Of the command line: a model, then cases."""
    name, *cases = sys.argv[1:]
    torch.set_num_threads(1)
    for case in cases:
        run_case(name, case)
        print(f"{name} {case}: right on rank {torch.distributed.get_rank()}", flush=True)
    gc.collect()  # PyTorch may hang where a DistributedDataParallel is freed behind its group
    torch.distributed.barrier()  # gloo's threads of a group may outlive one that is left while another is at work
    torch.distributed.destroy_process_group()
