"""Scripts written for ORTModule need another import line and nothing else."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "code",
    [
        "from lowtide import ORTModule; assert ORTModule.__module__ == 'lowtide.ortmodule.ortmodule'",
        "import lowtide; assert lowtide.ortmodule.ORTModule is lowtide.ORTModule",
    ],
)
def test_ortmodule_is_reached_by_the_package(code):
    subprocess.run([sys.executable, "-c", code], check=True)
