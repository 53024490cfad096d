"""A rank that fails: the other one ends by itself, with an error, within the group's timeout, and no rank has changed a
parameter in half. torchrun starts all of them again, and they go on to the same losses."""

import re

import pytest
from faults import GROUP_TIMEOUT_S
from ranks import run_ranks, run_until_one_ends, with_deepspeed

FAULTS = ["dies", "hangs", "raises in forward", "is interrupted"]


@pytest.mark.parametrize(
    "how", [how if how == "hangs" else pytest.param(how, marks=pytest.mark.long) for how in FAULTS]
)
def test_the_other_rank_ends(how, tmp_path):
    status, output = run_until_one_ends("faults.py", how, tmp_path, number=0)
    took = re.search(r"rank 0 ended after ([\d.]+) s: \w+", output)
    assert status == 1 and took, output[-4000:]
    assert float(took.group(1)) < GROUP_TIMEOUT_S + 3


@pytest.mark.long
@pytest.mark.parametrize(
    "how, wrapper",
    [
        *((how, "fully_shard") for how in FAULTS),
        # DeepSpeed makes its groups without the timeout of the first, so that a rank that hangs is waited for half an
        # hour, as in eager.
        *(pytest.param(how, "zero3", marks=with_deepspeed) for how in FAULTS if how != "hangs"),
    ],
)
def test_the_other_rank_ends_where_parameters_are_divided(how, wrapper, tmp_path):
    status, output = run_until_one_ends("faults.py", how, tmp_path, wrapper, number=0)
    took = re.search(r"rank 0 ended after ([\d.]+) s: \w+", output)
    assert status == 1 and took, output[-4000:]
    assert float(took.group(1)) < GROUP_TIMEOUT_S + 3


@pytest.mark.long
@pytest.mark.parametrize(
    "how, error", [("raises in forward", "UnsupportedError"), ("is interrupted", "KeyboardInterrupt")]
)
def test_the_rank_that_fails_is_unchanged(how, error, tmp_path):
    status, output = run_until_one_ends("faults.py", how, tmp_path, number=1)
    assert status != 0 and f"s: {error}" in output, output[-4000:]


@pytest.mark.long
@pytest.mark.parametrize(
    "wrapper", [pytest.param("", id="ddp"), "fully_shard", pytest.param("zero3", marks=with_deepspeed)]
)
def test_a_restart_goes_on_to_the_same_losses(wrapper, tmp_path):
    folders = [tmp_path / "whole", tmp_path / "broken"]
    for folder in folders:
        folder.mkdir()
    whole = run_ranks("restarts.py", folders[0], -1, wrapper)
    broken = run_ranks("restarts.py", folders[1], 5, wrapper, max_restarts=1)
    assert re.findall(r"begins with step (\d)", broken) == ["0", "5"]
    assert re.findall(r"losses .*", whole) == re.findall(r"losses .*", broken) != []
