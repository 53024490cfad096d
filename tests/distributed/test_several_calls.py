"""A module that is called several times in a step, on two processes: losses and final parameters are eager's, and those
of DistributedDataParallel."""

import importlib.util

import pytest
from ranks import run_ranks

CASES = [
    "siamese",
    "other_sizes",
    "target_without_gradients",
    "evaluated_between",
    "recurrent",
    "one_without_use",
    "penalty",
    "siamese-accumulation",
    "target_without_gradients-accumulation",
]


@pytest.mark.parametrize(
    "wrapper",
    [
        pytest.param(each, marks=pytest.mark.long if each in ("ddp", "zero1", "zero2") else ())
        for each in ("ddp", "fsdp2", "zero1", "zero2", "zero3")
    ],
)
def test_training_is_eagers(wrapper):
    if wrapper.startswith("zero") and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is not installed: see requirements-libraries.txt")
    cases = CASES if wrapper == "ddp" else [*CASES, "siamese-crossed"]
    output = run_ranks("several_calls_cases.py", wrapper, *cases, DS_ACCELERATOR="cpu")
    assert output.count(": right on rank") == 2 * len(cases)
