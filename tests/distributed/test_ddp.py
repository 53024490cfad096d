"""DistributedDataParallel around ORTModule and inside it, on two and on four processes: losses and final parameters are
eager's.

overlap: buckets travel while backward runs, from the second step on (the first has one bucket, PyTorch's own rule)."""

import pytest
from on_four import CASES as ON_FOUR
from on_four import each_model
from ranks import run_ranks

CASES = [
    ("gpt2", ("plain", "inside", "overlap"), {}, False),
    (
        "gpt2",
        (
            "accumulation",
            "clipping",
            "bucket_view",
            "zeros",
            "static_graph",
            "unused",
            "comm_hook",
            "power_sgd",
            "budget",
        ),
        {},
        True,
    ),
    ("gpt2", ("other_plan", "other_shape", "join"), {}, True),
    ("gpt2", ("autocast", "dropout"), {}, True),
    ("gpt2", ("compiled",), {}, True),
    ("gpt2", ("level_1", "level_1_accumulation"), {}, True),
    ("bert", ("plain",), {}, True),
    ("bert", ("accumulation", "clipping", "budget", "inside", "autocast", "dropout"), {}, True),
    ("bert", ("level_1", "level_1_accumulation"), {}, True),
    ("t5", ("plain", "accumulation", "clipping", "budget", "inside", "autocast", "dropout"), {}, True),
    ("t5", ("level_1", "level_1_accumulation"), {}, True),
    ("resnet", ("plain", "accumulation", "clipping", "budget", "inside", "autocast", "sync_batch_norm"), {}, True),
    ("resnet", ("level_1", "level_1_accumulation"), {}, True),
]


@pytest.mark.parametrize(
    "model, cases, variables",
    [
        pytest.param(*case, id="-".join([case[0], *case[1], *case[2].values()]), marks=pytest.mark.long if long else ())
        for *case, long in CASES
    ],
)
def test_training_is_eagers(model, cases, variables):
    output = run_ranks("ddp_cases.py", model, *cases, timeout=380, **variables)
    assert output.count(": right on rank") == 2 * len(cases)


@pytest.mark.long
@each_model
def test_four_processes(model):
    output = run_ranks("ddp_cases.py", model, *ON_FOUR, ranks=4, timeout=380)
    assert output.count(": right on rank") == 4 * len(ON_FOUR)
