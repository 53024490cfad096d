"""fully_shard and ORTModule on two processes: losses and final parameters are eager's, and parameters are gathered by
steps of the plan."""

import os
import sys
from pathlib import Path

import pytest
from on_four import CASES as ON_FOUR
from on_four import each_model
from ranks import run_ranks

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "training"))
from memory_counter import counted_environment  # noqa: E402

TORCH = {"ORTMODULE_FALLBACK_POLICY": "FALLBACK_UNSUPPORTED_TORCH_MODEL"}
CASES = [
    ("gpt2", ("offload",), {}, True),
    ("gpt2", ("two_dims",), {}, True),
    ("gpt2", ("two_dims_one_refuses",), TORCH, True),
    ("gpt2", ("alone",), {}, False),
    ("gpt2", ("mixed", "mixed_alone", "mixed_reductions", "mixed_outputs", "mixed_bf16"), {}, True),
    ("gpt2", ("plain", "kept", "accumulation", "clipping", "lengths", "one_group", "adam"), {}, True),
    ("gpt2", ("budget", "verify", "late", "state", "around"), {}, True),
    ("gpt2", ("level_1", "level_1_accumulation"), {}, True),
    ("gpt2", ("divided", "one_refuses", "other_plan", "around_one_refuses"), TORCH, True),
    ("gpt2", ("autocast", "dropout"), {}, True),
    ("bert", ("plain", "accumulation", "clipping"), {}, True),
    ("bert", ("budget", "autocast", "dropout"), {}, True),
    ("bert", ("level_1", "level_1_accumulation"), {}, True),
    ("resnet", ("plain", "accumulation", "clipping"), {}, True),
    ("resnet", ("budget", "autocast"), {}, True),
    ("resnet", ("level_1", "level_1_accumulation"), {}, True),
    ("t5", ("plain", "accumulation", "clipping"), {}, True),
    ("t5", ("budget", "autocast", "dropout"), {}, True),
    ("t5", ("level_1", "level_1_accumulation"), {}, True),
]


@pytest.mark.parametrize(
    "model, cases, variables",
    [
        pytest.param(*case, id="-".join([case[0], *case[1], *case[2].values()]), marks=pytest.mark.long if long else ())
        for *case, long in CASES
    ],
)
def test_training_is_eagers(model, cases, variables):
    ranks = 4 if cases[0].startswith("two_dims") else 2
    output = run_ranks("fsdp_cases.py", model, *cases, ranks=ranks, **variables)
    assert output.count(": right on rank") == ranks * len(cases)


@pytest.mark.long
@each_model
def test_four_processes(model):
    output = run_ranks("fsdp_cases.py", model, *ON_FOUR, ranks=4, timeout=380)
    assert output.count(": right on rank") == 4 * len(ON_FOUR)


@pytest.mark.long
@pytest.mark.parametrize("model", ["gpt2", "resnet"])
def test_reshard_after_forward_may_be_a_number(model):
    assert run_ranks("fsdp_cases.py", model, "by_two", ranks=4).count(": right on rank") == 4


@pytest.mark.long
def test_a_step_needs_what_is_planned():
    environment = counted_environment({name: os.environ[name] for name in ("LD_PRELOAD",) if name in os.environ})
    assert run_ranks("fsdp_peak.py", **environment).count(": right on rank") == 2
