"""One rank: training under DeepSpeed's ZeRO through ORTModule and in eager, one after the other. Arguments: the model,
then cases, each behind its stage: 2-plain, 1-checkpoint. Those of stage 3 alone: 3-kept, 3-init."""

import functools
import sys
import tempfile

import deepspeed
import torch
from alone import train_alone
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from lora import add_lora
from one_rank import LARGE, STEPS, assert_as_near, assert_same, build, memory_level, recomputes, run_cases, zoo

from lowtide.ortmodule import ORTModule
from lowtide.utils.hooks import configure_ort_compatible_zero_stage3

# DeepSpeed would compile its own communication in shared memory, behind a lock that a killed run leaves behind.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None

CASES = {
    "plain": {},
    "accumulation": {"config": {"gradient_accumulation_steps": 3}},
    "clipping": {"config": {"gradient_clipping": 0.1}},
    "level_1": {"memory_level": 1},
    "level_1_accumulation": {"memory_level": 1, "config": {"gradient_accumulation_steps": 3}},
    "budget": {"options": {"memory_budget": "85%"}, "batch": LARGE},
    "autocast": {"config": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}},
    "other_plan": {"options_of_rank_1": {"memory_budget": "80%"}, "batch": LARGE},  # gradients leave in the same order
    "one_refuses": {"hook_of_rank_1": True, "refused": "process 1"},
    "kept": {"kept_elements": 10_000},  # smaller parameters stay whole between steps
    "init": {"init": True},  # the model is partitioned while it is built, in f32
    "gathered": {"gathers": True},
    "evaluation": {"evaluates": True},
    "lora": {"lora": True},
    "around": {"calls_with_all": True, "refused": "is gathered around the call"},
    "entry": {"switches_on": True},
    "off": {"refused": "ORTMODULE_ENABLE_ZERO_STAGE3 is off"},
}


class Training:
    """A model of the zoo with its engine of DeepSpeed."""

    def __init__(self, name, stage, case, dtype=torch.float64, through_lowtide=True, dropout=0.0):
        self.stage, self.case = stage, case
        if case.get("switches_on") and through_lowtide:
            configure_ort_compatible_zero_stage3()
        config = {
            "train_micro_batch_size_per_gpu": 2,
            "zero_optimization": {
                "stage": stage,
                "reduce_bucket_size": 200_000,
                "stage3_param_persistence_threshold": case.get("kept_elements", 0),
            },
            "zero_allow_untested_optimizer": True,
            **case.get("config", {}),
        }
        if case.get("init"):
            dtype = torch.float32
            zoo.build(
                name
            )  # modules that PyTorch would else import inside, where zero.Init has replaced Tensor.__new__
        with deepspeed.zero.Init(config_dict_or_path=config, enabled=bool(case.get("init"))):
            self.model, make_batch = build(name, dtype, dropout)
        if case.get("lora"):
            add_lora(self.model)
        self._make_batch = functools.partial(make_batch, **case.get("batch", {}))
        options = case.get("options", {})
        if torch.distributed.get_rank() == 1:
            options = case.get("options_of_rank_1", options)
            if case.get("hook_of_rank_1"):
                next(self.model.children()).register_full_backward_hook(lambda module, gradients, incoming: None)
        self.module = ORTModule(self.model, **options) if through_lowtide else self.model
        trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.01, momentum=0.9)
        self.engine, *_ = deepspeed.initialize(model=self.module, optimizer=optimizer, config=config)
        self.losses = []

    def run(self, first, end):
        for step in range(first, end):
            seed = step * torch.distributed.get_world_size() + torch.distributed.get_rank()
            parameters = list(self.model.parameters()) if self.case.get("calls_with_all") else ()
            with deepspeed.zero.GatheredParameters(parameters):
                loss = self.engine(**self._make_batch(seed=seed)).loss
            self.engine.backward(loss)
            self.engine.step()
            self.losses.append(loss.detach())
            if self.case.get("gathers"):
                self.change_a_parameter()
            if self.case.get("evaluates"):
                self.losses.append(self.evaluate())
        return self

    def change_a_parameter(self):
        parameter = next(self.model.parameters())
        with deepspeed.zero.GatheredParameters(parameter, modifier_rank=0), torch.no_grad():
            parameter.mul_(1.5)

    def evaluate(self):
        self.engine.eval()
        with torch.no_grad():
            loss = self.engine(**self._make_batch(seed=1000)).loss
        self.engine.train()
        return loss

    def state(self):
        parameters = list(self.model.parameters())
        with deepspeed.zero.GatheredParameters(parameters):  # does nothing below stage 3
            return [*(parameter.detach().clone() for parameter in parameters), *self.model.buffers()]

    def end(self):
        """Losses, parameters and buffers."""
        if isinstance(self.module, ORTModule) and "refused" in self.case:
            if not self.case.get("hook_of_rank_1") or torch.distributed.get_rank() == 0:
                assert self.case["refused"] in self.module.fallback_reason, self.module.fallback_reason
        elif isinstance(self.module, ORTModule):
            assert self.module.fallback_reason is None, self.module.fallback_reason
            assert "memory_level" not in self.case or recomputes(self.module)
            if self.stage == 3:
                self.check_plan()
        state = self.state()
        self.engine.destroy()
        return [torch.stack(self.losses), *state]

    def check_plan(self):
        """Each parameter is gathered in forward, and where backward reads it once more there; they are empty in
        between."""
        parameters = list(self.model.parameters())
        if not self.case.get("kept_elements"):
            assert all(parameter.shape == (0,) for parameter in parameters)
        if not self.case.get("evaluates"):
            forward, backward = self.module.text("training").split("YieldOp")
            gathers = forward.count("AllGather")
            # Those that nobody trains travel together.
            assert 0 < gathers < len(parameters) if self.case.get("lora") else gathers == len(parameters)
            assert 0 < backward.count("AllGather") < len(parameters)  # nothing reads a bias


def compare(name, stage, case):
    def train(**how):
        training = Training(name, stage, case, **how)
        return training.run(0, STEPS * training.engine.gradient_accumulation_steps()).end()

    tolerance = 1e-5 if case.get("init") else 1e-6
    with memory_level(case.get("memory_level")):
        found = train()
    assert_same(found, train(through_lowtide=False), tolerance)


def compare_autocast(name, stage, case):
    start = [torch.zeros(STEPS), *Training(name, stage, {}, torch.float32, False).state()]
    exact = Training(name, stage, {}, torch.float32, False).run(0, STEPS).end()
    eager, ours = (Training(name, stage, case, torch.float32, way).run(0, STEPS).end() for way in (False, True))
    assert_as_near(ours, eager, exact, start)


def compare_dropout(name, stage):
    """Each rank draws what it does alone."""
    model, make_batch = build(name, torch.float64, dropout=0.1)
    losses, parameters = train_alone(model, make_batch, STEPS)
    unclipped = {"config": {"gradient_clipping": 0.0}}  # DeepSpeed's own default is 1
    training = Training(name, stage, unclipped, dropout=0.1)
    torch.manual_seed(torch.distributed.get_rank())
    found, *state = training.run(0, STEPS).end()
    assert_same([found, *state[: len(parameters)]], [losses, *parameters])


def compare_checkpoints(name, stage):
    """Written around ORTModule and read around the plain module, and back."""
    folders = [None]
    if torch.distributed.get_rank() == 0:
        folders = [tempfile.mkdtemp()]
    torch.distributed.broadcast_object_list(folders)
    ours, theirs = f"{folders[0]}/ours", f"{folders[0]}/theirs"
    first = Training(name, stage, {}).run(0, 4)
    first.engine.save_checkpoint(ours)
    fresh, _ = zoo.build(name)
    fresh.load_state_dict(get_fp32_state_dict_from_zero_checkpoint(ours))
    count = len(list(fresh.parameters()))
    assert_same(fresh.parameters(), [parameter.float() for parameter in first.state()[:count]])
    second = Training(name, stage, {}, through_lowtide=False)
    second.engine.load_checkpoint(ours)
    second.engine.save_checkpoint(theirs)
    third = Training(name, stage, {})
    third.engine.load_checkpoint(theirs)
    whole, *others = (training.run(4, 8).end() for training in (first, second, third))
    assert_same(*others)
    # Each rank goes on with buffers of rank 0, which wrote the file.
    assert_same(others[0][: 1 + count], [whole[0][4:], *whole[1 : 1 + count]])


def run(name, label):
    stage, _, label = label.partition("-")
    if label == "checkpoint":
        compare_checkpoints(name, int(stage))
    elif label == "dropout":
        compare_dropout(name, int(stage))
    elif label == "autocast":
        compare_autocast(name, int(stage), CASES[label])
    else:
        compare(name, int(stage), CASES[label])


if __name__ == "__main__":
    deepspeed.init_distributed("gloo", verbose=False)
    run_cases(run)
