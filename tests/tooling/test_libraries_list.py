"""The libraries that tests train models of are the same in both lists of them."""

from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[2]


def test_the_test_extra_is_the_requirements_file():
    lines = (ROOT / "requirements-libraries.txt").read_text().splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["test"] == [line for line in lines if line and not line.startswith("#")]
