"""One rank: what benchmarks/distributed/traffic.py finds of messages that take as long as is said here. Rank 1 begins
each one when rank 0 has waited for LATE seconds."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "distributed"))
from traffic import Traffic  # noqa: E402

LATE, COMPUTES = 1.0, 0.4


def blocked():
    dist.all_reduce(torch.ones(4))


def begun(how):
    work = how()
    if dist.get_rank() == 0:
        time.sleep(COMPUTES)
    work.wait()


def reduced():
    begun(lambda: dist.all_reduce(torch.ones(4), async_op=True))


def exchanged():
    peer = 1 - dist.get_rank()
    begun(lambda: (dist.irecv if dist.get_rank() == 0 else dist.isend)(torch.ones(4), peer))


def figures(work, traffic=None):
    traffic = traffic or Traffic()
    dist.barrier()
    if dist.get_rank() == 1:
        time.sleep(LATE)
    with traffic:
        work()
        traffic.backward_ended()
    return traffic.figures()


class Slow(torch.autograd.Function):
    """A layer whose backward takes a while in rank 0."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if dist.get_rank() == 0:
            time.sleep(COMPUTES)
        return gradient


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(600, 600), torch.nn.Linear(600, 600)

    def forward(self, x):
        return self.last(Slow.apply(self.first(x)))


def bucket():
    """The last layer's is on its way while the first one's backward runs."""
    outer, x = DistributedDataParallel(Net(), bucket_cap_mb=1), torch.ones(2, 600)
    for _ in range(2):
        outer(x).sum().backward()
    traffic = Traffic()
    outer.register_comm_hook(None, traffic.send_bucket)
    return figures(lambda: outer(x).sum().backward(), traffic)


def main():
    dist.init_process_group("gloo")
    for found, hidden in (
        (figures(blocked), 0),
        (figures(reduced), COMPUTES),
        (figures(exchanged), COMPUTES),
        (bucket(), COMPUTES),
    ):
        if dist.get_rank() == 0:
            assert 0.9 * (LATE - hidden) < (found["travels_ms"] - found["hidden_ms"]) / 1e3, found
            assert 0.9 * hidden <= found["hidden_ms"] / 1e3 < hidden + 0.3, found
    print(f"right on rank {dist.get_rank()}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
