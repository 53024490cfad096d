"""Processes that train together tell each other before the first step what they are: what would hang, or mix up
gradients, ends in words that name the process and what differs; what may differ trains."""

import pytest
from ranks import run_ranks


@pytest.mark.parametrize(
    "cases",
    [
        ("ddp_version", "ddp_frozen", "fsdp_dtype", "ddp_may_differ"),
        pytest.param(("ddp_dtype", "fsdp_version", "fsdp_frozen", "order_of_one"), marks=pytest.mark.long),
    ],
    ids="-".join,
)
def test_processes_that_are_not_alike_say_so(cases):
    check(cases)


def test_gradients_leave_in_the_same_order_or_pytorch_runs_all():
    check(["orders"], ORTMODULE_FALLBACK_POLICY="FALLBACK_UNSUPPORTED_TORCH_MODEL")


@pytest.mark.parametrize("case", ["budget", pytest.param("budget_of_another_graph", marks=pytest.mark.long)])
def test_a_budget_is_solved_on_rank_0(case):
    check([case])


def check(cases, **variables):
    assert run_ranks("alike_cases.py", *cases, timeout=180, **variables).count(": right on rank") == 2 * len(cases)
