"""One rank of a training under DistributedDataParallel or fully_shard. In step 3 rank 1 fails. Arguments: how, the
folder of a file in which ranks meet, "fully_shard" or nothing.

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


IN_BACKWARD = {
    "dies": lambda: os._exit(7),
    "hangs": lambda: time.sleep(1000),
    "is interrupted": lambda: os.kill(os.getpid(), signal.SIGINT),
}


def main():
    how, folder, *wrapper = sys.argv[1:]
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
    if wrapper:
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    module = ORTModule(model)
    outer = module if wrapper else DistributedDataParallel(module, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
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
            optimizer.zero_grad()
            loss = outer(x).square().mean()
            if wrapper and step == 2 and rank == 1:  # the other one waits for what it would begin
                Collectives.begin = lambda *_: IN_BACKWARD[how]()
            loss.backward()
            optimizer.step()
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
    return parameter.detach().to_local() if isinstance(parameter, DTensor) else parameter.detach()


def layers_at(values):
    model = layers()
    for parameter, value in zip(model.parameters(), values, strict=True):
        parameter.data.copy_(value)
    return model


if __name__ == "__main__":
    main()
