"""One rank: modules whose forward calls collectives, through ORTModule and in eager, side by side. Arguments: cases."""

import copy
import sys
import weakref

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch import nn

from lowtide.distributed import collectives
from lowtide.ortmodule import ORTModule

STEPS, WIDTH = 3, 16


def reduced(h):
    return functional.all_reduce(h, "sum", dist.group.WORLD)


def used_before_the_wait(h):
    """What is between a collective and the first reader of its result."""
    everywhere = functional.all_reduce(h, "sum", dist.group.WORLD)
    return h.tanh().exp() * everywhere


def gathered(h):
    return functional.all_gather_tensor_autograd(h, 0, dist.group.WORLD)


def scattered(h):
    return functional.reduce_scatter_tensor_autograd(h, "sum", 0, dist.group.WORLD)


def several(h):
    first, second = functional.all_reduce_coalesced([h, 2 * h.detach()], "sum", dist.group.WORLD)
    return first * second


def exchanged(h):
    half = h.shape[0] // 2
    return functional.all_to_all_single_autograd(h, [half, half], [half, half], dist.group.WORLD)


# Case → what forward does with the layers' result, whether it is one graph.
CASES = {
    **{
        each.__name__: (each, True) for each in (reduced, used_before_the_wait, gathered, scattered, several, exchanged)
    },
    "all_reduce_of_nn": (differentiable.all_reduce, True),
    "all_gather_of_nn": (lambda h: torch.cat(differentiable.all_gather(h)), True),
    "maximum_of_nn": (lambda h: differentiable.all_reduce(h, dist.ReduceOp.MAX), False),
}


class Net(nn.Module):
    def __init__(self, collective=None):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.collective = collective

    def forward(self, x):
        h = self.down(torch.relu(self.up(x)))
        return torch.tanh(self.collective(h)) if self.collective else h


def net(*arguments):
    torch.manual_seed(0)
    return Net(*arguments).double()


def train(module):
    """Losses, then parameters."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = module(torch.randn(4 + 2 * step, WIDTH, dtype=torch.float64, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(parameter.detach() for parameter in module.parameters())]


def compare(case):
    collective, is_one_graph = CASES[case]
    eager = net(collective)
    engine = ORTModule(copy.deepcopy(eager))
    for ours, theirs in zip(train(engine), train(eager), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    assert (engine.fallback_reason is None) == is_one_graph, engine.fallback_reason
    return engine


def check_messages():
    """What steps of a plan do, with as much room as plans may have: for a few elements at a time or for all, packed or
    as they lie."""
    rank, ranks, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    of_all = [torch.arange(ranks * 30.0).view(ranks * 5, 6).add(100 * each) for each in range(ranks)]
    total, mine = sum(of_all), of_all[rank]
    for at_once in (1, 7, 30):
        part, room = torch.empty(5, 6), torch.empty((ranks - 1) * at_once)
        collectives.reduce_scatter(part, mine, room, group)
        assert part.equal(total[5 * rank : 5 * rank + 5]), at_once
    whole = torch.empty(ranks * 5, 6)
    collectives.all_gather(whole, total[5 * rank : 5 * rank + 5].clone(), group)
    assert whole.equal(total)
    square = total[: 2 * ranks].repeat(1, ranks)
    for axis, rooms in ((0, (1, 0)), (1, (2, 1))):
        part = square.chunk(ranks, axis)[rank].contiguous()
        room = torch.empty(rooms[0] * (ranks - 1) * part.numel())
        scattered = torch.empty_like(part)
        collectives.redistribute(scattered, square, room, "scatter", axis, group)
        assert scattered.equal(ranks * part)
        room = torch.empty(part.numel() * (ranks - 1)) if rooms[1] else None
        gathered = torch.empty_like(square)
        collectives.redistribute(gathered, part, room, "gather", axis, group)
        assert gathered.equal(square)


def main():
    dist.init_process_group("gloo")
    group, engines = weakref.ref(dist.group.WORLD), []
    for case in sys.argv[1:]:
        engines.append(check_messages() if case == "messages" else compare(case))
        print(f"{case}: right on rank {dist.get_rank()}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    assert group() is None, "an engine keeps the group, whose threads may abort a process that ends"


if __name__ == "__main__":
    main()
