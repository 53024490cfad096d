"""./dev bench budget: what it finds wrong of points, which it says are beaten, and what it writes."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS / "training"), str(BENCHMARKS / "budget")]
from document import document  # noqa: E402
from verdicts import (  # noqa: E402
    AROUND_BYTES,
    beaten_by,
    beats,
    faults_of_budgets,
    faults_of_lengths,
    relative_times,
)

MB = 1_000_000


def budget(asked, planned=None, measured=None, predicted_ms=10.0, same_bits=True):
    planned = asked if planned is None else planned
    return {
        "asked_bytes": asked,
        "planned_bytes": planned,
        "measured_bytes": planned if measured is None else measured,
        "predicted_ms": predicted_ms,
        "same_bits": same_bits,
    }


def faults(*rows, external_bytes=0):
    return list(faults_of_budgets({"model": "tiny", "external_bytes": external_bytes, "rows": list(rows)}))


def test_budgets_that_hold_have_no_fault():
    assert (
        faults(budget(100 * MB), budget(90 * MB, predicted_ms=11.0), budget(80 * MB, 70 * MB, predicted_ms=11.0)) == []
    )


@pytest.mark.parametrize(
    "row, said",
    [
        (budget(90 * MB, planned=90 * MB + 1, measured=80 * MB, predicted_ms=11.0), "90,000,001 are planned"),
        (budget(90 * MB, measured=90 * MB + AROUND_BYTES + 1, predicted_ms=11.0), "are used"),
        (budget(90 * MB, predicted_ms=11.0, same_bits=False), "other bits"),
        (budget(90 * MB, predicted_ms=9.9), "less time is predicted"),
        (budget(101 * MB, predicted_ms=11.0), "more bytes are planned"),
    ],
)
def test_each_fault_of_a_budget_is_told(row, said):
    (fault,) = faults(budget(100 * MB), row)
    assert said in fault and f"tiny at {row['asked_bytes']:,}" in fault


def test_only_convolutions_may_take_scratch_of_their_own():
    row = budget(100 * MB, measured=102 * MB)
    assert faults(row, external_bytes=5 * MB) == [] and len(faults(row)) == 1


def run_of_lengths(**changes):
    rows = [
        {"length": 64, "without_bytes": 10, "planned_bytes": 10, "measured_bytes": 10},
        {"length": 1024, "without_bytes": 200 * MB, "planned_bytes": 99 * MB, "measured_bytes": 99 * MB},
    ]
    result = {"model": "tiny", "budget_bytes": 100 * MB, "eager_longest_bytes": 150 * MB, "rows": rows}
    return {**result, "transitions": {"first call": 1}, "fallback_reason": None, **changes}


def test_faults_of_lengths():
    assert list(faults_of_lengths(run_of_lengths())) == []
    (again,) = faults_of_lengths(run_of_lengths(transitions={"first call": 1, "sizes": 1}))
    assert "one export" in again
    (as_good,) = faults_of_lengths(run_of_lengths(eager_longest_bytes=100 * MB))
    assert "eager keeps within" in as_good
    over, paid = run_of_lengths(), run_of_lengths()
    over["rows"][1]["measured_bytes"] = 103 * MB
    paid["rows"][0]["planned_bytes"] = 9
    assert "at length 1024" in next(faults_of_lengths(over))
    assert "not the plan without a budget" in next(faults_of_lengths(paid))


def test_a_point_is_beaten_in_both_or_not_at_all():
    assert beats((10, 5.0), (10, 6.0)) and beats((9, 6.0), (10, 6.0))
    assert not beats((10, 6.0), (10, 6.0)) and not beats((9, 7.0), (10, 6.0)) and not beats((11, 5.0), (10, 6.0))
    ours = {"loss": (8, 4.0), "floor": (3, 6.0), "middle": (5, 5.0)}
    assert beaten_by((8, 6.0), ours) == "loss" and beaten_by((5, 5.5), ours) == "middle"
    assert beaten_by((2, 9.0), ours) is None


def test_times_are_compared_within_rounds():
    slow_round = {"times_ms": [[100.0, 110.0, 120.0], [1000.0, 1100.0, 1200.0]]}
    other = {"times_ms": [[121.0], [1210.0]]}
    assert relative_times(other, slow_round) == pytest.approx([1.1, 1.1])


def test_the_page_tells_what_is_beaten_and_what_is_not():
    def way(name, peak_bytes, ms, **facts):
        return {"way": name, "peak_bytes": peak_bytes, "times_ms": [[ms, ms]], **facts}

    def ours(name, peak_bytes, ms, **facts):
        return way(name, peak_bytes, ms, planned_peak_bytes=peak_bytes, predicted_ms=ms, **facts)

    turns = {
        "model": "tiny",
        "cores": 2,
        "others": 0.25,
        "rows": [
            way("eager", 100 * MB, 100.0),
            way("checkpoint", 60 * MB, 130.0),
            ours("default", 70 * MB, 80.0),
            ours("loss", 55 * MB, 80.0, gradient_bytes=20 * MB),
            ours("budget, floor", 30 * MB, 90.0, budget_bytes=30 * MB),
        ],
    }
    compiled = {
        "0.5": {"rows": [way("eager", 100 * MB, 200.0), way("compile", 50 * MB, 190.0)]},
        "0.1": {"rows": [way("eager", 100 * MB, 200.0), way("compile", 40 * MB, 140.0)]},
    }
    rungs = [{"peak_bytes": peak * MB, "predicted_ms": ms} for peak, ms in ((55, 100.0), (40, 110.0), (30, 110.1))]
    planned = {"default_peak_bytes": 70 * MB, "gradient_bytes": 20 * MB, "rungs": rungs}
    points = {"turns": {"tiny": turns}, "compile": {"tiny": compiled}, "planned": {"tiny": planned}}
    text = document(points, "3.12")
    taken = "1 rounds of 2 timed steps, 2 cores, of which other work had 25%"
    assert f"{taken}; predicted by shipped prices, of another machine." in text
    priced_here = {**points, "turns": {"tiny": {**turns, "calibrated": True}}}
    assert f"{taken}." in document(priced_here, "3.12")
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| ")}
    assert lines["checkpoint"].endswith("| loss |")
    assert lines["torch.compile 0.5"].endswith("| budget, floor |") and " 95 (" in lines["torch.compile 0.5"]
    assert lines["torch.compile 0.1"].endswith("| none |")
    assert "+12% (+12% to +12%)" in lines["budget, floor"] and "| 0.30 |" in lines["budget, floor"]
    assert "| tiny | 100.0 | 20.0 (0.20) | 70.0 (0.70) | 55.0 (0.55) | 40.0 (0.40) | 30.0 (0.30) |" in text
