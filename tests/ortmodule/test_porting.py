"""Scripts written for ORTModule need another import line and nothing else: docs/porting.md lists the lines."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide.ported_names import INSTEAD

PAGE = Path(__file__).resolve().parents[2] / "docs/porting.md"
LINES = re.findall(r"^\| `((?:from|import) [^`]*)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)


def test_the_page_lists_every_name_that_is_not_here():
    told = {text.partition("ImportError: ")[2] for _, text in LINES if text.startswith("ImportError: ")}
    assert len(LINES) >= 33 and told == set(INSTEAD.values())


@pytest.mark.parametrize(("line", "text"), LINES)
def test_each_line_works_or_says_what_to_write(line, text):
    line = line.replace("onnxruntime.training", "lowtide")
    if not text.startswith("ImportError: "):
        exec(line, {})
        return
    with pytest.raises(ImportError) as raised:
        exec(line, {})
    assert str(raised.value).endswith(f" is not part of lowtide: {text.removeprefix('ImportError: ')}")


@pytest.mark.parametrize(
    "code",
    [
        "from lowtide import ORTModule; assert ORTModule.__module__ == 'lowtide.ortmodule.ortmodule'",
        "import lowtide; assert lowtide.ortmodule.ORTModule is lowtide.ORTModule",
        "import lowtide; lowtide.optim.FusedAdam, lowtide.utils.inspect_activation",
    ],
)
def test_the_package_reaches_what_a_first_line_imports(code):
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_that_nobody_knows_are_pythons_own_errors():
    import lowtide

    assert not hasattr(lowtide, "nothing") and not hasattr(lowtide.ortmodule, "nothing")
    with pytest.raises(ModuleNotFoundError, match="No module named 'lowtide.nothing'"):
        import lowtide.nothing  # noqa: F401


def test_there_are_no_extensions_to_install():
    command = [sys.executable, "-m", "lowtide.ortmodule.torch_cpp_extensions.install"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "lowtide has no extensions to build: it is ready as it is installed\n"
