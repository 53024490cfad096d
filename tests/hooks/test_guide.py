"""The examples of docs/convergence.md run as they stand."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from lowtide.cli import main
from lowtide.utils.hooks.summary_file import Run

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "convergence.md"


def python_blocks():
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def test_the_example_writes_two_runs_with_the_same_files(tmp_path):
    script = python_blocks()[0]
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


def test_the_worked_example_of_bisect(tmp_path, monkeypatch, capsys):
    """Each command of the console blocks prints what the guide shows; "…" stands for anything."""
    (tmp_path / "my_model.py").write_text(python_blocks()[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    blocks = re.findall(r"```console\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    commands = [part.partition("\n") for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    assert len(commands) == 3
    for line, _, shown in commands:
        words = shlex.split(line)
        with monkeypatch.context() as patch:
            while "=" in words[0]:
                patch.setenv(*words.pop(0).split("=", 1))
            assert words.pop(0) == "lowtide"
            assert main(words) == ("first op that errs" in shown)
        told = capsys.readouterr().out
        expected = ".*?".join(re.escape(part) for part in shown.rstrip().split("…"))
        assert re.fullmatch(expected, told.rstrip(), re.DOTALL), told
    sys.modules.pop("my_model", None)
