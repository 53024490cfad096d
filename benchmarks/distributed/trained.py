"""The tests of tests/distributed that train whole models, and the table of what they trained."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ["test_ddp.py", "test_fsdp.py", "test_zero.py"]
WRAPPER_OF = {"ddp_cases.py": "ddp", "fsdp_cases.py": "fsdp2"}  # zero_cases.py has the stage in each case
COLUMNS = {  # of the table, by the names of cases
    **{name: name for name in ("plain", "accumulation", "clipping", "autocast")},
    "level_1": "memory level 1",
    "budget": "budget",
}
MODELS = ("gpt2", "bert", "t5", "resnet")
WRAPPERS = ("ddp", "zero1", "zero2", "zero3", "fsdp2")
RANKS = (2, 4)


def run_tests(arguments):
    """Cells of the table that pytest has run, as {"wrapper/model/case/ranks": {"day": …, "right": …}}."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "runs"
        command = [sys.executable, "-m", "pytest", "--all", "-q", *(f"tests/distributed/{name}" for name in TESTS)]
        subprocess.run([*command, *arguments], cwd=ROOT, env={**os.environ, "LOG_OF_RANKS": str(log)}, check=False)
        runs = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    day = time.strftime("%Y-%m-%d")
    return {key: {"day": day, "right": right} for run in runs for key, right in cells_of(run)}


def cells_of(run):
    """Of one start of the processes, up to the first case that is not right: it ends those behind it."""
    model, *cases = run["arguments"]
    for case in cases:
        wrapper, name = WRAPPER_OF.get(run["script"]), case
        if wrapper is None:
            stage, _, name = case.partition("-")
            wrapper = f"zero{stage}"
        if name in COLUMNS:
            yield f"{wrapper}/{model}/{COLUMNS[name]}/{run['ranks']}", case in run["right"]
        if case not in run["right"]:
            return


def table(cells):
    yield "`./dev bench distributed --tests [...]` runs the tests that train whole models (what follows is pytest's)"
    yield "and stores what they found: a cell has the day of its last run, *fails*, or *not run*."
    yield ""
    yield "| wrapper | model | processes | " + " | ".join(COLUMNS.values()) + " |"
    yield "|---|---|--:|" + "---|" * len(COLUMNS)
    for wrapper in WRAPPERS:
        for model in MODELS:
            for ranks in RANKS:
                found = [cells.get(f"{wrapper}/{model}/{name}/{ranks}") for name in COLUMNS.values()]
                words = ["not run" if cell is None else cell["day"] if cell["right"] else "fails" for cell in found]
                yield f"| {wrapper} | {model} | {ranks} | " + " | ".join(words) + " |"
