"""`./dev bench kernels` in its smallest form, and that all its graphs are graphs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lowtide._lowtide import Graph

BENCH = Path(__file__).resolve().parents[2] / "benchmarks" / "kernels"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    yield
    for name in ("cases", "loops", "measure", "page"):
        sys.modules.pop(name, None)


def test_rows_hold_ours_and_pytorchs(tmp_path):
    rows = tmp_path / "rows.json"
    flags = ["--families", "reductions", "--dtypes", "f32", "--threads", "1", "--rounds", "1", "--json", rows]
    subprocess.run([sys.executable, BENCH, *flags], check=True, capture_output=True)
    (row,) = json.loads(rows.read_text())["rows"]
    assert (row["family"], row["half"], row["unit"]) == ("reductions", "forward", "GB/s")
    assert all(row[side]["best"] > 0 for side in ("ours", "pytorch")) and row["peak"] > 0


def test_graphs_compute_what_pytorch_computes(bench):
    from cases import cases
    from measure import Ours, Theirs, made

    small = [case for case in cases() if case.family in ("norms", "pointwise", "reductions")]
    for case in small:
        if "dropout" in case.name:  # other random numbers
            continue
        inputs = list(made(case, "f32"))
        ours, theirs = Ours(case, "f32", inputs), Theirs(case, inputs)
        ours.forward()
        theirs.forward()
        torch.testing.assert_close(ours.y, theirs.y.detach(), rtol=1e-4, atol=1e-4)


def test_all_graphs_parse(bench):
    from cases import FAMILIES, cases

    found = cases()
    assert {case.family for case in found} == set(FAMILIES)
    for case in found:
        for dtype in case.dtypes:
            Graph.parse(case.graph(dtype))


def test_the_page_keeps_what_is_outside_of_its_markers(bench, tmp_path, monkeypatch):
    import page

    copy = tmp_path / "kernels.md"
    copy.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    monkeypatch.setattr(page, "PAGE", copy)
    rate = {"best": 2.0, "q3": 2.0, "median": 1.0, "q1": 1.0}
    ratios = {"best": 2.0, "q1": 1.0, "median": 1.5, "q3": 2.0}
    row = {"family": "attention", "name": "gpt2", "half": "forward", "threads": 2, "unit": "GFLOP/s", "peak": 4.0}
    row |= {"ours": rate, "pytorch": rate, "ratios": ratios}
    rows = [row | {"dtype": "f32"}, row | {"dtype": "bf16", "ours": rate | {"best": 3.0}}]
    page.write({"rows": rows, "others": 0.5, "clock": "wall", "rounds": 3, "day": "2026-01-01"})
    text = copy.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| gpt2 | forward | bf16 | 2 | 1.50 |" in text and "50% of the processors" in text
