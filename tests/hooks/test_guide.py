"""The example of docs/convergence.md runs as it stands, and its runs are comparable."""

import re
import subprocess
import sys
from pathlib import Path

from lowtide.utils.hooks.summary_file import Run

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "convergence.md"


def test_the_example_writes_two_runs_with_the_same_files(tmp_path):
    (script,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    eager, engine = Run(tmp_path / "pt_out"), Run(tmp_path / "ort_out")
    assert eager.steps() == engine.steps() == [0, 1, 2]
    for step in eager.steps():
        assert eager.order(step) == engine.order(step)
    # The file that the guide shows.
    (shown,) = re.findall(r"```\n>>(GELU.*?)={16}", GUIDE.read_text(), re.DOTALL)
    text = eager.path(0, "GELU_2_0th_output_forward").read_text()
    for part in re.split("[…\n]", shown):
        assert part.strip() in text
