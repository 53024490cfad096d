"""One rank: training under DistributedDataParallel through ORTModule and in eager, side by side. Arguments: the model,
then cases."""

import contextlib
import copy
import functools

import torch
from alone import train_alone
from one_rank import LARGE, STEPS, assert_as_near, assert_same, build, memory_level, recomputes, run_cases, zoo
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from lowtide import compile_backend
from lowtide.errors import UnsupportedError
from lowtide.ortmodule import ORTModule

CASES = {
    "plain": {},
    "accumulation": {"micro_steps": 3},
    "clipping": {"clip": 0.1},
    "zeros": {"set_to_none": False},
    "bucket_view": {"ddp": {"gradient_as_bucket_view": True}},
    "static_graph": {"ddp": {"static_graph": True}},
    "unused": {"ddp": {"find_unused_parameters": True}},
    "comm_hook": {"comm_hook": lambda: (None, fp16_compress_hook), "tolerance": 1e-3},  # f16 on the wire
    "power_sgd": {"comm_hook": lambda: (_power_sgd(), _bucket_by_bucket), "tolerance": 1e-3},
    "inside": {"ddp_inside": True},
    "level_1": {"memory_level": 1},
    "level_1_accumulation": {"memory_level": 1, "micro_steps": 3},
    "budget": {"options": {"memory_budget": "85%"}, "batch": LARGE},
    "other_plan": {"options_of_rank_1": {"memory_budget": "85%"}, "batch": LARGE},
    "other_shape": {"batch_of_rank_1": {"batch": 3, "length": 24}},
    "join": {"join": True},
}


def _power_sgd():
    """Of full rank, so that what it sends does not depend on the order of a bucket's gradients, which its random start
    does."""
    return PowerSGDState(None, matrix_approximation_rank=128, start_powerSGD_iter=2, min_compression_rate=0)


def _bucket_by_bucket(state, bucket):
    """powerSGD_hook's further collectives begin in whichever thread finds the ones before done: with several buckets
    under way the ranks may begin them in different orders, and wait for each other for ever."""
    future = powerSGD_hook(state, bucket)
    future.wait()
    return future


def train(outer, make_batch, join=False, **how):
    """Losses of all steps. `join`: rank 1 has fewer."""
    with outer.join() if join else contextlib.nullcontext():
        return train_alike(outer, make_batch, STEPS - 3 * torch.distributed.get_rank() if join else STEPS, **how)


def train_alike(outer, make_batch, steps, micro_steps=1, clip=None, set_to_none=True, autocast=False):
    rank, ranks, losses = torch.distributed.get_rank(), torch.distributed.get_world_size(), []
    optimizer = torch.optim.SGD(outer.parameters(), lr=0.01, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        for micro_step in range(micro_steps):
            is_last = micro_step + 1 == micro_steps
            batch = make_batch(seed=(step * micro_steps + micro_step) * ranks + rank)
            with contextlib.nullcontext() if is_last else outer.no_sync():
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                    loss = outer(**batch).loss
                loss.backward()
            losses.append(loss.detach())
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(outer.parameters(), clip)
        optimizer.step()
    return torch.stack(losses)


def run(name, case, wrap):
    model, make_batch = build(name, torch.float64)
    batch = case.get("batch", {})
    if torch.distributed.get_rank() == 1:
        batch = case.get("batch_of_rank_1", batch)
    make_batch = functools.partial(make_batch, **batch)
    if case.get("ddp", {}).get("find_unused_parameters"):
        torch.manual_seed(0)
        model.unused = torch.nn.Linear(3, 3).double()
    options = case.get("ddp", {})
    outer = wrap(model, options)
    if "comm_hook" in case:
        outer.register_comm_hook(*case["comm_hook"]())
    how = {key: case[key] for key in ("micro_steps", "clip", "set_to_none", "join") if key in case}
    return outer, [train(outer, make_batch, **how), *model.parameters(), *model.buffers()]


def compare(name, label):
    """Losses, parameters and buffers."""
    case = CASES[label]
    _, expected = run(name, case, lambda model, options: DistributedDataParallel(model, **options))
    module_options = case.get("options", {})
    if torch.distributed.get_rank() == 1:
        module_options = case.get("options_of_rank_1", module_options)

    def around(model, options):
        return DistributedDataParallel(ORTModule(model, **module_options), **options)

    def inside(model, options):
        return ORTModule(DistributedDataParallel(model, **options), **module_options)

    with memory_level(case.get("memory_level")):
        outer, found = run(name, case, inside if case.get("ddp_inside") else around)
    engine = outer if case.get("ddp_inside") else outer.module
    assert engine.fallback_reason is None, engine.fallback_reason
    assert "memory_level" not in case or recomputes(engine)
    agent = engine._training_manager.last_agent
    assert len(agent.session.backward_regions(0)) > 1 or name == "resnet"  # which is small
    assert_same(found, expected, case.get("tolerance", 1e-6))


def compare_autocast(name):
    def trained(wrap, autocast):
        model, make_batch = zoo.build(name)
        module = wrap(model)
        losses = train_alike(DistributedDataParallel(module), make_batch, STEPS, autocast=autocast)
        assert getattr(module, "fallback_reason", None) is None
        return [losses, *model.parameters(), *model.buffers()]

    fresh, _ = zoo.build(name)
    start = [torch.zeros(STEPS), *fresh.parameters(), *fresh.buffers()]
    exact, eager = (trained(lambda model: model, autocast) for autocast in (False, True))
    assert_as_near(trained(ORTModule, True), eager, exact, start)


def compare_dropout(name):
    """Each rank draws what it does alone."""
    model, make_batch = zoo.build(name, dropout=0.1, dtype=torch.float64)
    losses, parameters = train_alone(copy.deepcopy(model), make_batch, STEPS)
    torch.manual_seed(torch.distributed.get_rank())
    outer = DistributedDataParallel(ORTModule(model))
    assert_same([train(outer, make_batch), *model.parameters()], [losses, *parameters])


def compare_compiled(name):
    """Both ways around: torch.compile inside of DistributedDataParallel, and around it."""
    pieces = []

    def backend(*arguments, **options):
        pieces.append(compile_backend.lowtide(*arguments, **options))
        return pieces[-1]

    def inside(model, options):
        return DistributedDataParallel(torch.compile(model, backend=backend))

    def around(model, options):
        return torch.compile(DistributedDataParallel(model), backend=backend)

    _, expected = run(name, {}, lambda model, options: DistributedDataParallel(model))
    for way in (inside, around):
        pieces.clear()
        assert_same(run(name, {}, way)[1], expected)
        assert pieces and not any(piece.fallback_reason for piece in pieces)
        torch.compiler.reset()


def look_at_sync_batch_norm(name):
    """PyTorch trains it on no CPU, and its own words reach the user; without training it computes."""
    model, make_batch = zoo.build(name, dtype=torch.float64)
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    module = ORTModule(model)
    try:
        module(**make_batch())
    except UnsupportedError as error:
        assert "SyncBatchNorm expected input tensor to be on GPU" in str(error), error
    else:
        raise AssertionError("SyncBatchNorm trains on the CPU: it belongs to the cases")
    assert_same([module.eval()(**make_batch()).loss], [model(**make_batch()).loss])
    assert module.fallback_reason is None


def look_at_overlap(_):
    """In which order gradients of layers and buckets of DistributedDataParallel come."""
    torch.manual_seed(0)
    width = 2600  # 27 MB a layer: a bucket
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(3)))
    module = ORTModule(model)
    outer = DistributedDataParallel(module)
    events = []

    def share(_, bucket):
        events.append((bucket.index(), sum(parameter.grad is None for parameter in model.parameters())))
        work = torch.distributed.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0] / 2)

    outer.register_comm_hook(None, share)
    generator = torch.Generator().manual_seed(torch.distributed.get_rank())
    for _ in range(3):
        events.clear()
        outer.zero_grad()
        outer(torch.randn(2, width, generator=generator)).square().mean().backward()
        assert module.fallback_reason is None
        gathered = [torch.empty(width) for _ in range(2)]
        torch.distributed.all_gather(gathered, model[0].bias.grad)
        assert torch.equal(*gathered)
    # Each bucket leaves before PyTorch has the gradients of the layers before it.
    assert [index for index, _ in events] == list(range(len(events))) and len(events) >= 3, events
    assert events[0][1] >= 4 and events[1][1] >= 2, events


WITHOUT_A_LINE = {
    "overlap": look_at_overlap,
    "autocast": compare_autocast,
    "compiled": compare_compiled,
    "dropout": compare_dropout,
    "sync_batch_norm": look_at_sync_batch_norm,
}


def run_case(name, label):
    if label in WITHOUT_A_LINE:
        WITHOUT_A_LINE[label](name)
    else:
        compare(name, label)


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    run_cases(run_case)
