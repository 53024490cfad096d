"""One rank of two, where rank 1 is not like rank 0. Arguments: cases. Whoever meets the other says so in words."""

import copy
import datetime
import gc
import sys
import time

import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import lowtide
from lowtide.errors import DifferentProcesses
from lowtide.ortmodule import ORTModule
from lowtide.store import plans

WIDTH = 64
GROUP_TIMEOUT_S = 30


def layers(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH)).to(dtype)


def batch(rows=4, dtype=torch.float32):
    generator = torch.Generator().manual_seed(torch.distributed.get_rank())
    return torch.randn(rows, WIDTH, generator=generator, dtype=dtype)


def step(outer, x):
    outer(x).square().mean().backward()


def other_version(wrap):
    if torch.distributed.get_rank() == 1:
        lowtide.__version__ = "0.0.9"
    return wrap(layers()), batch(), "process 1 has lowtide 0.0.9, process 0 lowtide 0.1.0"


def other_dtype(wrap):
    """Of the same size, so that nothing else notices."""
    dtype = (torch.bfloat16, torch.float16)[torch.distributed.get_rank()]
    expected = "parameter '0.weight' is float16[64, 64] and trained in process 1, bfloat16[64, 64] and trained in"
    return wrap(layers(dtype)), batch(dtype=dtype), expected


def frozen(wrap):
    """After it was wrapped, which PyTorch does not notice: it waits for the gradient."""
    model = layers()
    outer = wrap(model)
    if torch.distributed.get_rank() == 1:
        model[2].bias.requires_grad_(False)
    return outer, batch(), "parameter '2.bias' is float32[64] and frozen in process 1, float32[64] and trained in"


def refused(case, wrap):
    version = lowtide.__version__
    outer, x, expected = case(wrap)
    try:
        step(outer, x)
    except DifferentProcesses as error:
        assert expected in str(error), error
    else:
        raise AssertionError("processes that are not alike trained together")
    finally:
        lowtide.__version__ = version


def data_parallel(model, **options):
    return DistributedDataParallel(ORTModule(model, **options))


def sharded(model, **options):
    return ORTModule(fully_shard(model), **options)


def check_what_may_differ():
    """Rows of the batch, the code and so the plan, what is frozen where unused parameters are looked for."""
    rank = torch.distributed.get_rank()
    model = layers()
    if rank == 1:
        model[1].forward = lambda x: (2 * torch.sigmoid(2 * x)) - 1
    outer = DistributedDataParallel(ORTModule(model), find_unused_parameters=True)
    if rank == 1:
        model[2].bias.requires_grad_(False)
    plain = DistributedDataParallel(copy.deepcopy(layers()))
    step(outer, batch(4 + rank))
    step(plain, batch(4 + rank))
    assert outer.module.fallback_reason is None
    torch.testing.assert_close(model[0].weight.grad, plain.module[0].weight.grad)


def tower(last):
    torch.manual_seed(0)
    layers = [layer for _ in range(5) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, WIDTH), last)


def check_budget_is_solved_once():
    """By rank 0."""
    rank, seek = torch.distributed.get_rank(), plans._planned
    if rank == 1:
        plans._planned = None
    for wrap in (data_parallel, sharded):
        assert len(set(peaks_by_rank(wrap(tower(torch.nn.Tanh()), memory_budget="90%")))) == 1
    plans._planned = seek


def check_budget_of_another_graph():
    """Each solves its own."""
    last = (torch.nn.Tanh(), torch.nn.GELU())[torch.distributed.get_rank()]
    assert len(set(peaks_by_rank(data_parallel(tower(last), memory_budget="90%")))) == 2


def peaks_by_rank(outer):
    """Of all plans that were found."""
    step(outer, batch(2048))
    module = outer if isinstance(outer, ORTModule) else outer.module
    assert module.fallback_reason is None, module.fallback_reason
    agent, told = module._training_manager.last_agent, [None, None]
    peaks = tuple(agent.session.plan_peaks(agent.symbol_values()))
    assert len(peaks) > 2 and max(peaks) > min(peaks)
    torch.distributed.all_gather_object(told, peaks)
    return told


class TwoBranches(torch.nn.Module):
    """Two buckets of gradients, whose order is that of the branches."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = torch.nn.Linear(600, 600), torch.nn.Linear(600, 600)
        self.first = "left"

    def forward(self, x):
        if self.first == "left":
            return self.right(self.left(x).tanh()).tanh()
        return self.left(self.right(x).tanh()).tanh()


def reduced_by_order():
    """As parameters of ZeRO stages 1 and 2 are marked, on which nothing is reduced here."""
    model = TwoBranches()
    for parameter in model.parameters():
        parameter._dp_group = torch.distributed.group.WORLD
    return model, ORTModule(model)


def check_orders():
    """Another order on all ranks trains on; on one of them PyTorch takes over, on all."""
    rank, x = torch.distributed.get_rank(), torch.ones(2, 600)
    model, module = reduced_by_order()
    for first in ("left", "right", "left"):
        model.first = first
        step(module, x)
        assert module.fallback_reason is None, module.fallback_reason
    model, module = reduced_by_order()
    model.first = ("left", "right")[rank]
    for _ in range(2):
        step(module, x)
        assert "gradients of process 1 leave in another order than those of process 0" in module.fallback_reason


def check_order_of_one():
    """Who alone would bring gradients in another order stops, before it computes anything."""
    model, module = reduced_by_order()
    step(module, torch.ones(2, 600))
    if torch.distributed.get_rank() == 1:
        model.first = "right"
        module.zero_grad()
        try:
            step(module, torch.ones(2, 600))
        except DifferentProcesses as error:
            assert "in another order than before in this process" in str(error) and "process 0 did not" in str(error)
        else:
            raise AssertionError("gradients left in an order that the other process does not know")
        assert model.left.weight.grad is None
    else:
        time.sleep(GROUP_TIMEOUT_S / 2)
    torch.distributed.barrier()


CASES = {
    "budget": check_budget_is_solved_once,
    "budget_of_another_graph": check_budget_of_another_graph,
    "orders": check_orders,
    "order_of_one": check_order_of_one,
    "ddp_version": lambda: refused(other_version, data_parallel),
    "ddp_dtype": lambda: refused(other_dtype, data_parallel),
    "ddp_frozen": lambda: refused(frozen, data_parallel),
    "ddp_may_differ": check_what_may_differ,
    "fsdp_version": lambda: refused(other_version, sharded),
    "fsdp_dtype": lambda: refused(other_dtype, sharded),
    "fsdp_frozen": lambda: refused(frozen, sharded),
}


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=GROUP_TIMEOUT_S))
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        CASES[name]()
        print(f"{name}: right on rank {torch.distributed.get_rank()}", flush=True)
    gc.collect()
    torch.distributed.barrier()  # gloo's threads of a group may outlive one that is left while another is at work
    torch.distributed.destroy_process_group()
