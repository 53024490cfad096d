"""What pip installs is built without what tests inject faults with; ./dev's build has it."""

import json
import re
import subprocess
import sys
from pathlib import Path

from lowtide import _lowtide

ROOT = Path(__file__).resolve().parents[2]
MACRO = "LOWTIDE_TEST_FAULTS"


def session_commands(build, *options):
    """How the files of src/session and the Python module would be compiled."""
    subprocess.run(
        ["cmake", "-S", ROOT, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
         f"-DPython_EXECUTABLE={sys.executable}", *options],
        check=True, capture_output=True,
    )  # fmt: skip
    entries = json.loads((build / "compile_commands.json").read_text())
    commands = [entry["command"] for entry in entries if re.search(r"lowtide_session|bindings/session", entry["file"])]
    assert len(commands) > 2
    return commands


def test_the_shipped_configuration_injects_no_faults(tmp_path):
    section = (ROOT / "pyproject.toml").read_text().split("[tool.scikit-build.cmake.define]\n")[1].split("\n[")[0]
    shipped = [f"-D{name}={value}" for name, value in re.findall(r'^(\w+) = "(.*)"$', section, re.MULTILINE)]
    assert "-DLOWTIDE_PYTHON=ON" in shipped
    assert not any(MACRO in command for command in session_commands(tmp_path / "shipped", *shipped))
    with_faults = session_commands(tmp_path / "tests", *shipped, f"-D{MACRO}=ON")
    assert all(MACRO in command for command in with_faults)


def test_the_build_of_tests_injects_faults():
    assert _lowtide.injects_faults
