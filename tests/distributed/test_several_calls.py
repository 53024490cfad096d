"""A module that is called several times in a step, on two processes: losses and final parameters are eager's, and those
of DistributedDataParallel."""

import pytest
from ranks import run_ranks, with_deepspeed

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
        pytest.param("ddp", marks=pytest.mark.long),
        pytest.param("fsdp2", marks=pytest.mark.long),
        pytest.param("zero1", marks=[pytest.mark.long, with_deepspeed]),
        pytest.param("zero2", marks=[pytest.mark.long, with_deepspeed]),
        pytest.param("zero3", marks=with_deepspeed),
    ],
)
def test_training_is_eagers(wrapper):
    cases = CASES if wrapper == "ddp" else [*CASES, "siamese-crossed"]
    output = run_ranks("several_calls_cases.py", wrapper, *cases, DS_ACCELERATOR="cpu")
    assert output.count(": right on rank") == 2 * len(cases)
