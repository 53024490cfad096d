"""What trains a model on several processes: one class each, around a module in eager or through lowtide.

`clear()` drops gradients, `forward_backward(batch)` and `update()` are the step; `without_communication()` is a context
in which a step sends nothing, where the wrapper has one.
"""

import os
import sys

import torch
from torch.distributed.fsdp import fully_shard


class Plain:
    """Forward, backward and a fused AdamW; subclasses say what shares gradients."""

    def __init__(self, model, wrap):
        self.module = wrap(self.divide(model))
        self.outer = self.share(self.module)
        self.optimizer = torch.optim.AdamW(self.outer.parameters(), lr=1e-4, fused=True)

    def divide(self, model):
        return model

    def share(self, module):
        return module

    def clear(self):
        self.optimizer.zero_grad(set_to_none=True)

    def forward_backward(self, batch):
        self.outer(**batch).loss.backward()

    def update(self):
        self.optimizer.step()

    without_communication = None


class DDP(Plain):
    def share(self, module):
        return torch.nn.parallel.DistributedDataParallel(module)

    def without_communication(self):
        return self.outer.no_sync()


class DDPBucketViews(DDP):
    """`.grad` is a piece of what is sent."""

    def share(self, module):
        return torch.nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True)


class FSDP2(Plain):
    """A group for each layer, and one for the rest."""

    def divide(self, model):
        layers = max((m for m in model.modules() if isinstance(m, torch.nn.ModuleList)), key=len)
        for layer in layers:
            fully_shard(layer)
        return fully_shard(model)


class Zero:
    """DeepSpeed; the stage is a subclass's."""

    without_communication = None
    stage = 1

    def __init__(self, model, wrap):
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        import deepspeed

        # DeepSpeed would compile its own communication in shared memory.
        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
        deepspeed.init_distributed("gloo", verbose=False)
        self.module = wrap(model)
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {
                "stage": self.stage,
                "reduce_bucket_size": 25 << 18,  # 25 MiB, as DDP's
                "stage3_param_persistence_threshold": 0,  # no parameter stays whole
            },
            "zero_allow_untested_optimizer": True,
        }
        optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-4, fused=True)
        self.outer, *_ = deepspeed.initialize(model=self.module, optimizer=optimizer, config=config)

    def clear(self):
        pass  # an update does

    def forward_backward(self, batch):
        self.outer.backward(self.outer(**batch).loss)

    def update(self):
        self.outer.step()


class Zero1(Zero):
    stage = 1


class Zero2(Zero):
    stage = 2


class Zero3(Zero):
    stage = 3


WRAPPERS = {"ddp": DDP, "ddp_views": DDPBucketViews, "fsdp2": FSDP2, "zero1": Zero1, "zero2": Zero2, "zero3": Zero3}
