"""Where PyTorch is not installed, lowtide says in one line what to install."""

import os
import subprocess
import sys
from pathlib import Path

import nanobind_backend
import pytest

import lowtide

INSTALL = "lowtide needs PyTorch 2.10 or newer, which is not installed: pip install torch"


@pytest.fixture
def run(tmp_path):
    """Runs Python with lowtide and what the wheel requires, and no other package."""
    for package in (lowtide, nanobind_backend):
        folder = Path(package.__file__).parent
        (tmp_path / folder.name).symlink_to(folder)

    def run(*arguments):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run([sys.executable, "-S", *arguments], env=environment, capture_output=True, text=True)

    return run


@pytest.mark.parametrize("arguments", [("--help",), ("analyze", "model.py"), ()])
def test_the_command_line(run, arguments):
    done = run("-m", "lowtide", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"lowtide: {INSTALL}\n")


def test_imports(run):
    done = run("-c", "import lowtide; print(lowtide.pool_bytes()['live_bytes'], hasattr(lowtide, 'nothing'))")
    assert (done.stdout, done.stderr) == ("0 False\n", "")
    for code in ("from lowtide import ORTModule", "import lowtide; lowtide.ortmodule"):
        assert run("-c", code).stderr.splitlines()[-1] == f"ModuleNotFoundError: {INSTALL}"
