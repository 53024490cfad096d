"""The README's training script runs as it stands, and in the engine."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_training_script():
    (script,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert len(lines) == 30
    assert {where for _, _, where in lines} == {"in the engine"}
    assert float(lines[-1][1]) < 0.8 * float(lines[0][1])
