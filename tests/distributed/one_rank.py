"""What the scripts of one rank share: models of several buckets of gradients, the end of a process."""

import gc
import sys

import torch
import zoo_sizes

if sys.argv[1:2] != ["resnet"]:  # which would be slow
    zoo_sizes.HIDDEN = 192  # gradients of several buckets

import zoo  # noqa: E402
from comparisons import assert_as_near, assert_same  # noqa: E402, F401
from transformers.models.t5.modeling_t5 import T5LayerNorm  # noqa: E402

STEPS = 20
LARGE = {"batch": 12, "length": 48}  # activations count beside gradients


class NormInItsDtype(T5LayerNorm):
    def forward(self, hidden_states):
        variance = hidden_states.square().mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon))


def build(name, dtype, dropout=0.0):
    """t5's norms sum in f32 also where the model is f64, so that two orders of summing, also two of eager's, give
    parameters that differ by 1e-7 after 20 steps. With three micro-steps one ReLU of 294,912 reads 1e-8 at step 9, of
    another sign then, and parameters part by 1e-5 a step from there on. With norms in f64 they are eager's to 1e-15."""
    model, make_batch = zoo.build(name, dropout=dropout, dtype=dtype)
    for module in model.modules() if name == "t5" else ():
        if isinstance(module, T5LayerNorm):
            module.__class__ = NormInItsDtype
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
