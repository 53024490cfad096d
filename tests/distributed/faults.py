"""One rank of a training under DistributedDataParallel, fully_shard or DeepSpeed's ZeRO stage 3. In step 3 rank 1
fails. Arguments: how, the folder of a file in which ranks meet, "fully_shard", "zero3" or nothing.

Whoever is not killed checks that the step has changed no parameter, and, where that takes no other rank, that the
engine still computes."""

import datetime
import os
import signal
import sys
import time

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from lowtide.distributed import Collectives
from lowtide.ortmodule import ORTModule

WIDTH = 512  # 1 MiB a layer: a bucket
GROUP_TIMEOUT_S = 6


def layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)))


def batch(step, rank):
    return torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(2 * step + rank))


class Wrapped:
    """A training step of the layers under a wrapper."""

    def __init__(self, model, wrapper, bucket_mb=25, momentum=0.0):
        if wrapper == "fully_shard":
            for layer in model:
                fully_shard(layer)
            fully_shard(model)
        self.module = ORTModule(model)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1, momentum=momentum)
        self.engine = None
        if wrapper == "zero3":
            self.engine = self.outer = self._under_zero()
        else:
            self.outer = self.module if wrapper else DistributedDataParallel(self.module, bucket_cap_mb=bucket_mb)

    def _under_zero(self):
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])  # which a launcher sets
        import deepspeed

        # DeepSpeed would compile its own communication in shared memory, behind a lock that a killed run leaves behind.
        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
        deepspeed.init_distributed("gloo", verbose=False)
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
            "zero_allow_untested_optimizer": True,
        }
        engine, *_ = deepspeed.initialize(model=self.module, optimizer=self.optimizer, config=config)
        return engine

    def backward(self, loss):
        loss.backward() if self.engine is None else self.engine.backward(loss)

    def update(self):
        if self.engine is not None:
            self.engine.step()
            return
        self.optimizer.step()
        self.optimizer.zero_grad()


IN_BACKWARD = {
    "dies": lambda: os._exit(7),
    "hangs": lambda: time.sleep(1000),
    "is interrupted": lambda: os.kill(os.getpid(), signal.SIGINT),
}


def main():
    how, folder, wrapper = [*sys.argv[1:], ""][:3]
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=GROUP_TIMEOUT_S),
    )
    model = layers()
    wrapped = Wrapped(model, wrapper, bucket_mb=1)
    module = wrapped.module
    for step in range(3):
        x = batch(step, rank)
        if step == 2 and rank == 1:
            if how == "raises in forward":
                x = x[:, 1:]
            elif not wrapper:
                model[1].bias.register_post_accumulate_grad_hook(lambda _: IN_BACKWARD[how]())
        before = [own(parameter).clone() for parameter in model.parameters()]
        start = time.monotonic()
        try:
            loss = wrapped.outer(x).square().mean()
            if wrapper and step == 2 and rank == 1:  # the other one waits for what it would begin
                Collectives.begin = lambda *_: IN_BACKWARD[how]()
            wrapped.backward(loss)
            wrapped.update()
        except BaseException as error:
            took = time.monotonic() - start
            assert step == 2
            assert all(map(torch.equal, before, map(own, model.parameters())))
            if not wrapper:
                torch.testing.assert_close(module(batch(2, rank)), layers_at(before)(batch(2, rank)))
            assert module.fallback_reason is None
            print(f"rank {rank} ended after {took:.1f} s: {type(error).__name__}: {error}", flush=True)
            raise


def own(parameter):
    """What this rank has of it."""
    if hasattr(parameter, "ds_tensor"):
        return parameter.ds_tensor.detach()
    return parameter.detach().to_local() if isinstance(parameter, DTensor) else parameter.detach()


def layers_at(values):
    model = layers()
    for parameter, value in zip(model.parameters(), values, strict=True):
        parameter.data.copy_(value)
    return model


if __name__ == "__main__":
    main()
