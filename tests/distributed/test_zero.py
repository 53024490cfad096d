"""DeepSpeed's ZeRO stages 1, 2 and 3 around ORTModule, on two processes: losses and final parameters are DeepSpeed's
with the plain module, and each reads the other's checkpoints."""

import importlib.util

import pytest
from ranks import run_ranks

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed: see requirements-libraries.txt"
)
CASES = ("plain", "accumulation", "clipping", "budget", "autocast", "checkpoint")
LEVEL = {"ORTMODULE_MEMORY_OPT_LEVEL": "1"}
each = pytest.mark.parametrize("model, stage", [(m, s) for m in ("gpt2", "bert", "t5", "resnet") for s in (1, 2, 3)])


def train(model, stage, cases, **variables):
    names = [f"{stage}-{case}" for case in cases]
    output = run_ranks("zero_cases.py", model, *names, timeout=390, DS_ACCELERATOR="cpu", **variables)
    assert output.count(": right on rank") == 2 * len(names)


@pytest.mark.parametrize("stage", [2, 3])
def test_gpt2(stage):
    train("gpt2", stage, ["plain"])


@pytest.mark.long
def test_stage_3_alone():
    train("gpt2", 3, ["kept", "init", "gathered", "evaluation"])


@pytest.mark.long
@pytest.mark.parametrize("case, variables", [("around", {}), ("off", {"ORTMODULE_ENABLE_ZERO_STAGE3": "0"})])
def test_pytorch_runs_what_the_plan_cannot_gather(case, variables):
    train("gpt2", 3, [case], ORTMODULE_FALLBACK_POLICY="FALLBACK_UNSUPPORTED_TORCH_MODEL", **variables)


@pytest.mark.long
@each
def test_training_is_deepspeeds(model, stage):
    train(model, stage, CASES)


@pytest.mark.long
@each
def test_level_1(model, stage):
    train(model, stage, ["plain", "accumulation"], **LEVEL)
