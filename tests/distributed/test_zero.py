"""DeepSpeed's ZeRO stages 1, 2 and 3 around ORTModule, on two processes: losses and final parameters are DeepSpeed's
with the plain module, and each reads the other's checkpoints."""

import pytest
from on_four import CASES as ON_FOUR
from on_four import each_model
from ranks import run_ranks, with_deepspeed

pytestmark = with_deepspeed
CASES = ("plain", "accumulation", "clipping", "budget", "autocast", "checkpoint")
each = pytest.mark.parametrize("model, stage", [(m, s) for m in ("gpt2", "bert", "t5", "resnet") for s in (1, 2, 3)])


def train(model, stage, cases, ranks=2, **variables):
    names = [f"{stage}-{case}" for case in cases]
    output = run_ranks("zero_cases.py", model, *names, ranks=ranks, timeout=390, DS_ACCELERATOR="cpu", **variables)
    assert output.count(": right on rank") == ranks * len(names)


@pytest.mark.parametrize("stage", [2, 3])
def test_gpt2(stage):
    train("gpt2", stage, ["plain"])


@pytest.mark.long
@pytest.mark.parametrize(
    "stage, cases",
    # DeepSpeed gathers the parameters of stage 3 one by one: six cases of it may be too long for a test.
    [(1, ON_FOUR), (2, ON_FOUR), (3, ON_FOUR[:3]), (3, ON_FOUR[3:])],
    ids=lambda value: value if isinstance(value, int) else value[0],
)
@each_model
def test_four_processes(model, stage, cases):
    train(model, stage, cases, ranks=4)


@pytest.mark.long
def test_stage_3_alone():
    train("gpt2", 3, ["kept", "init", "gathered", "evaluation", "lora"])


@pytest.mark.long
def test_the_entry_of_ortmodule_switches_stage_3_on():
    train("gpt2", 3, ["entry"], ORTMODULE_ENABLE_ZERO_STAGE3="0")


@pytest.mark.long
def test_ranks_may_have_other_plans_where_gradients_leave_in_the_same_order():
    train("gpt2", 2, ["other_plan"])


@pytest.mark.long
@pytest.mark.parametrize(
    "stage, case, variables",
    [
        (3, "around", {}),
        (3, "off", {"ORTMODULE_ENABLE_ZERO_STAGE3": "0"}),
        (2, "one_refuses", {}),
        (3, "one_refuses", {}),
    ],
)
def test_pytorch_runs_what_the_plan_cannot_gather(stage, case, variables):
    train("gpt2", stage, [case], ORTMODULE_FALLBACK_POLICY="FALLBACK_UNSUPPORTED_TORCH_MODEL", **variables)


@pytest.mark.long
@each
def test_training_is_deepspeeds(model, stage):
    train(model, stage, CASES)


@pytest.mark.long
@pytest.mark.parametrize("model, stage", [("gpt2", 1), ("gpt2", 2), ("gpt2", 3), ("bert", 3), ("t5", 3)])
def test_each_process_draws_what_it_does_alone(model, stage):
    train(model, stage, ["dropout"])


@pytest.mark.long
@each
def test_level_1(model, stage):
    train(model, stage, ["level_1", "level_1_accumulation"])
