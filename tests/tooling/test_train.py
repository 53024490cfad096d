"""./dev train, small: what a newcomer runs first."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

LONG = pytest.mark.long
TRAIN = Path(__file__).resolve().parents[2] / "examples" / "train"


@pytest.mark.parametrize(
    "model", ["gpt2", *(pytest.param(name, marks=pytest.mark.long) for name in ("llama", "bloom"))]
)
def test_main_job(model):
    options = ["--model", model, "--steps", "20", "--seq", "64", "--batch", "2", "--every", "10"]
    done = subprocess.run([sys.executable, TRAIN, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    eager, lowtide = map(float, re.search(r"^held-out loss +(\S+) +(\S+)$", done.stdout, re.MULTILINE).groups())
    assert lowtide == pytest.approx(eager, rel=1e-3)
    assert re.search(r"^peak of a step, planned +\d", done.stdout, re.MULTILINE)
