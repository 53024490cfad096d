"""One rank: training under fully_shard through ORTModule and in eager. Arguments: the model, then cases."""

import copy
import functools
import gc
import sys
import tempfile

import torch
import zoo
from alone import train_alone
from comparisons import assert_as_near, assert_same
from exact_norms import sum_norms_in_their_dtype
from levels import memory_level, recomputes
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from lowtide._lowtide import Session
from lowtide.capture import Call, capture, gathers, import_divided
from lowtide.distributed import as_if_divided
from lowtide.ortmodule import ORTModule

STEPS = 20
LARGE = {"batch": 12, "length": 48}  # activations count beside parameters
LAYERS = {
    "gpt2": lambda model: model.transformer.h,
    "bert": lambda model: model.bert.encoder.layer,
    "resnet": lambda model: model.resnet.encoder.stages,
    "t5": lambda model: [*model.encoder.block, *model.decoder.block],
}
CASES = {
    "plain": {},
    "alone": {"steps": 4, "alone_bytes": 60000, "as_if": True},
    "kept": {"fsdp": {"reshard_after_forward": False}},
    "by_two": {"fsdp": {"reshard_after_forward": 2}, "steps": 4},
    "accumulation": {"micro_steps": 3},
    "clipping": {"clip": 0.1},
    "level_1": {"memory_level": 1},
    "level_1_accumulation": {"memory_level": 1, "micro_steps": 3},
    "budget": {"options": {"memory_budget": "90%"}, "batch": LARGE},
    "lengths": {"lengths": (16, 11)},  # by rank
    "one_group": {"one_group": True},
    "verify": {"options": {"verify": True}, "steps": 3},
    "late": {"late": True, "steps": 4},
    "around": {"late": True, "around": True, "steps": 4},
    "around_one_refuses": {"late": True, "around": True, "steps": 4, "hook_of_rank_1": True, "refused": "process"},
    "adam": {"optimizer": functools.partial(torch.optim.AdamW, lr=1e-3, eps=1e-3)},
    "other_plan": {"options_of_rank_1": {"memory_budget": "80%"}, "batch": LARGE, "refused": "different orders"},
    "one_refuses": {"hook_of_rank_1": True, "refused": "; process 1 runs the module in PyTorch"},
    "offload": {"fsdp": {"offload_policy": CPUOffloadPolicy(pin_memory=False)}, "steps": 4},
    "two_dims": {"mesh": (2, 2), "steps": 4},
    "two_dims_one_refuses": {"mesh": (2, 2), "steps": 2, "hook_of_rank_1": True, "refused": "process"},
    "mixed": {
        "fsdp": {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float64)},
        "steps": 4,
        "tolerance": 1e-4,
        "holds": ("AllGather(group=0, ranks=2, reduce=f64)", "ReduceScatter(group=0, ranks=2) %cast"),
    },
    "mixed_alone": {
        "fsdp": {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.float32)},
        "steps": 4,
        "tolerance": 1e-4,
        "holds": ("AllGather(group=0, ranks=2, reduce=f32)",),
        "alone_bytes": 60000,
    },
    "mixed_reductions": {
        "fsdp": {"mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)},
        "steps": 4,
        "tolerance": 1e-4,
        "holds": ("AllGather(group=0, ranks=2, reduce=bf16)",),
    },
    "mixed_outputs": {
        "fsdp": {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.float32, output_dtype=torch.float64)},
        "one_group": True,
        "steps": 4,
        "tolerance": 1e-4,
    },
    "mixed_bf16": {
        "fsdp": {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)},
        "steps": 4,
        "tolerance": 2e-2,
        "holds": ("AllGather(group=0, ranks=2, reduce=f32)", "ReduceScatter(group=0, ranks=2) %cast"),
    },
    "divided": {"fsdp": {}, "steps": 2, "factor": 3.0, "refused": "set_gradient_divide_factor"},
}


def shard(model, name, one_group=False, **options):
    for layer in [] if one_group else LAYERS[name](model):
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def train(outer, make_batch, micro_steps=1, clip=None, lengths=None, optimizer=None, steps=STEPS, autocast=False):
    rank, ranks, losses = torch.distributed.get_rank(), torch.distributed.get_world_size(), []
    length = {} if lengths is None else {"length": lengths[rank]}
    optimizer = (optimizer or functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9))(outer.parameters())
    for step in range(steps):
        for micro_step in range(micro_steps):
            outer.set_requires_gradient_sync(micro_step + 1 == micro_steps)
            batch = make_batch(seed=(step * micro_steps + micro_step) * ranks + rank, **length)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = outer(**batch).loss
            loss.backward()
            losses.append(loss.detach())
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(outer.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return torch.stack(losses)


def run(name, case, wrap):
    model, make_batch = zoo.build(name, dtype=torch.float64)
    sum_norms_in_their_dtype(model)
    options = dict(case.get("fsdp", {}))
    if "mesh" in case:
        options["mesh"] = init_device_mesh("cpu", case["mesh"], mesh_dim_names=("replicate", "shard"))
    if not case.get("late"):
        shard(model, name, case.get("one_group", False), **options)
    make_batch = functools.partial(make_batch, **case.get("batch", {}))
    if case.get("hook_of_rank_1") and torch.distributed.get_rank() == 1:
        LAYERS[name](model)[0].register_full_backward_hook(lambda module, gradients, incoming: None)
    if "factor" in case:
        model.set_gradient_divide_factor(case["factor"])
    outer = wrap(model)
    if case.get("late"):
        shard(outer if case.get("around") else model, name)
    how = {key: case[key] for key in ("micro_steps", "clip", "lengths", "optimizer", "steps") if key in case}
    losses = train(outer, make_batch, **how)
    whole = {
        key: value.full_tensor() if isinstance(value, DTensor) else value
        for key, value in get_model_state_dict(model).items()
    }
    return outer, [losses, *whole.values()]


def compare(name, label):
    """Losses, parameters and buffers."""
    case = CASES[label]
    gathers._ALONE_BYTES = case.get("alone_bytes", gathers._ALONE_BYTES)
    _, expected = run(name, case, lambda model: model)
    options = case.get("options", {})
    if torch.distributed.get_rank() == 1:
        options = case.get("options_of_rank_1", options)
    with memory_level(case.get("memory_level")):
        outer, found = run(name, case, lambda model: ORTModule(model, **options))
    if "refused" in case:
        if not case.get("hook_of_rank_1") or torch.distributed.get_rank() != 1:
            assert case["refused"] in outer.fallback_reason, outer.fallback_reason
    else:
        assert outer.fallback_reason is None, outer.fallback_reason
        check_plan(outer)
        assert "memory_level" not in case or recomputes(outer)
        for line in case.get("holds", ()):
            assert line in outer.text("training"), outer.text("training")
    if case.get("as_if"):
        check_simulated_plan(name, outer)
    if label == "budget":
        check_reductions_go_on(outer)
    assert_same(found, expected, case.get("tolerance", 1e-6))


def compare_autocast(name):
    def trained(wrap, autocast):
        model, make_batch = zoo.build(name)
        outer = wrap(shard(model, name))
        losses = train(outer, make_batch, autocast=autocast)
        assert getattr(outer, "fallback_reason", None) is None, outer.fallback_reason
        whole = get_model_state_dict(model).values()
        return [losses, *(value.full_tensor() if isinstance(value, DTensor) else value for value in whole)]

    fresh, _ = zoo.build(name)
    start = [torch.zeros(STEPS), *get_model_state_dict(fresh).values()]
    exact, eager = (trained(lambda model: model, autocast) for autocast in (False, True))
    assert_as_near(trained(ORTModule, True), eager, exact, start)


def compare_dropout(name):
    """Each rank draws what it does alone."""
    model, make_batch = zoo.build(name, dropout=0.1, dtype=torch.float64)
    losses, parameters = train_alone(copy.deepcopy(model), make_batch, STEPS)
    torch.manual_seed(torch.distributed.get_rank())
    outer = ORTModule(shard(model, name))
    found = train(outer, make_batch)
    assert outer.fallback_reason is None, outer.fallback_reason
    assert_same([found, *(each.full_tensor() for each in model.parameters())], [losses, *parameters])


def check_plan(outer):
    """Parameters are gathered in forward, small ones of a group together, and once more where backward reads them:
    but for those that it reads first."""
    forward, backward = outer.text("training").split("YieldOp")
    parameters = list(outer.parameters())
    assert all(isinstance(parameter, DTensor) for parameter in parameters)
    assert isinstance(outer.module, FSDPModule)
    gathered = forward.count("AllGather")
    assert 0 < gathered < len(parameters) / 2
    assert backward.count("AllGather") in range(1, gathered) if gathered > 1 else "AllGather" not in backward
    assert backward.count("ReduceScatter") == gathered


def check_reductions_go_on(outer):
    """While kernels run, though not beyond the budget."""
    agent = outer._training_manager.last_agent
    assert "\nwait " in agent.collectives(agent.last_sizes), agent.collectives(agent.last_sizes)
    peaks = agent.session.plan_peaks(agent.symbol_values())
    assert outer.memory_report()["planned_peak_bytes"] <= 0.9 * peaks[0], peaks


def check_simulated_plan(name, outer):
    """What `lowtide plan --ranks` makes of the whole module gathers and reduces as the divided one does."""
    model, make_batch = zoo.build(name, dtype=torch.float64)
    call = Call((), make_batch())
    divided = import_divided(capture(model, (), make_batch()), model, call, as_if_divided(model, 2))
    session, agent = Session(divided.graph, training=True), outer._training_manager.last_agent
    expected = agent.collectives(agent.last_sizes)
    assert expected.count("AllGather") > 1
    assert session.collectives(agent.symbol_values()) == expected


def check_state(name):
    """What eager saves the engine loads, and the other way round; evaluation between steps is eager's."""
    generator = torch.Generator().manual_seed(0)
    folder = [tempfile.mkdtemp() if torch.distributed.get_rank() == 0 else None]
    torch.distributed.broadcast_object_list(folder)
    found = []
    for wrap in (lambda model: model, ORTModule):
        losses = []
        for begin, inside in ((0, wrap), (3, lambda model: model), (6, wrap)):
            model, make_batch = zoo.build(name, dtype=torch.float64)
            with torch.no_grad():
                for parameter in model.parameters():  # else what is not loaded would be the same anyway
                    parameter.add_(torch.rand(parameter.shape, generator=generator, dtype=parameter.dtype) * 0.01)
            outer = inside(shard(model, name))
            optimizer = torch.optim.AdamW(outer.parameters(), lr=1e-3, eps=1e-3)
            path = f"{folder[0]}/{wrap.__name__}{{}}".format
            if begin:
                state = dict(zip(("model", "optimizer"), get_state_dict(outer, optimizer), strict=True))
                checkpoint.load(state, checkpoint_id=path(begin))
                set_state_dict(outer, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
            for step in range(begin, begin + 3):
                outer(**make_batch(seed=step)).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                outer.eval()
                with torch.no_grad():
                    losses.append(outer(**make_batch(seed=100)).loss)
                outer.train()
            state = dict(zip(("model", "optimizer"), get_state_dict(outer, optimizer), strict=True))
            checkpoint.save(state, checkpoint_id=path(begin + 3))
            assert getattr(outer, "fallback_reason", None) is None
        generator.manual_seed(0)
        found.append(torch.stack(losses))
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)


def main():
    name, *cases = sys.argv[1:]
    torch.distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    for label in cases:
        checks = {"state": check_state, "autocast": compare_autocast, "dropout": compare_dropout}
        checks[label](name) if label in checks else compare(name, label)
        print(f"{name} {label}: right on rank {torch.distributed.get_rank()}", flush=True)
        gc.collect()
    torch.distributed.barrier()  # gloo's threads of a group may outlive one that is left while another is at work
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
