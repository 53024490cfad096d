"""The README's training script runs as it stands, and in the engine; its opening is what a bench writes."""

import importlib.util
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


def bench():
    spec = importlib.util.spec_from_file_location("readme_bench", ROOT / "benchmarks" / "readme" / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_opening_shows_the_picture_that_the_bench_writes():
    opening = (ROOT / "README.md").read_text().partition(bench().BEGIN)[2].partition(bench().END)[0]
    (picture,) = re.findall(r"^!\[.*\]\((.*)\)$", opening, re.MULTILINE)
    assert (ROOT / picture).read_text().startswith("<svg ")


def test_the_table_of_speed_and_peaks():
    def row(way, times_ms, peak_bytes):
        return {"way": way, "times_ms": times_ms, "peak_bytes": peak_bytes}

    eager = row("eager", [[150.0, 200.0], [210.0]], 400_000_000)
    ours = [row("loss", [[160.0]], 200_000_000), row("budget, +10% time", [[250.0]], 100_000_000)]
    lines = list(bench().table({"gpt2": {"rows": [eager, *ours]}, "bert": {"rows": [eager, ours[0]]}}))
    assert lines[2:] == [
        "| gpt2 | 200 ms | 400 MB | 1.25x | 50% | 0.80x | 25% |",
        "| bert | 200 ms | 400 MB | 1.25x | 50% |  |  |",
    ]
