"""./dev as a newcomer calls it."""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def dev(*arguments, **options):
    return subprocess.run([ROOT / "dev", *arguments], capture_output=True, text=True, **options)


def test_unknown_verb_prints_the_verbs():
    done = dev("nonsense")
    assert done.returncode == 2
    assert all(f"./dev {verb}" in done.stdout for verb in ("train", "test", "bench", "lint", "python"))


def test_works_with_a_closed_stdin():
    done = subprocess.run(
        ["sh", "-c", "./dev python -c 'import sys; print(sys.prefix)' <&-"], cwd=ROOT, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_unknown_benchmark_names_those_that_exist():
    done = dev("bench", "nonsense")
    assert done.returncode == 1
    assert "training" in done.stderr


@pytest.mark.long
def test_bench_training_rows(tmp_path):
    """The JSON rows have what tools read, and eager's peak on bert is what it is known to be."""
    rows = tmp_path / "rows.json"
    options = ["--models", "bert", "--modes", "eager,checkpoint", "--steps", "1", "--rounds", "1", "--json", rows]
    done = dev("bench", "training", *options)
    assert done.returncode == 0, done.stderr
    eager, checkpoint = json.loads(rows.read_text())
    keys = {"model", "mode", "step_ms", "step_ms_min", "step_ms_max", "peak_bytes", "first_step_s"}
    assert keys | {"peak_with_optimizer_bytes"} <= eager.keys()
    assert eager["peak_bytes"] == pytest.approx(690.1e6, rel=0.01)
    assert checkpoint["peak_bytes"] == pytest.approx(400.7e6, rel=0.01)
