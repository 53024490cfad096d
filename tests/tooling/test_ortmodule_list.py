"""docs/ortmodule_tests.md names tests that exist, and says why where there is none."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROWS = [line for line in (ROOT / "docs/ortmodule_tests.md").read_text().splitlines() if line.startswith("| ")]
NAMED = re.compile(r"`([a-z_/]+\.py)(?:::(\w+))?(?:\[[^`]*\])?`")


def functions_of(path):
    tree = ast.parse((ROOT / "tests" / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_each_row_names_a_test_that_exists_or_a_reason():
    wrong, previous = [], False
    for row in ROWS:
        theirs, ours = (cell.strip() for cell in row.strip("|").split("|"))
        if theirs in ("ORTModule's test", "---"):
            continue
        named = NAMED.findall(ours)
        wrong += [f"{path}::{name}" for path, name in named if name and name not in functions_of(path)]
        wrong += [path for path, _ in named if not (ROOT / "tests" / path).exists()]
        if not named and not ours.startswith(("none: ", "same")):
            wrong.append(f"{theirs}: {ours}")
        if ours.startswith("same") and not previous:
            wrong.append(f"{theirs}: same as what?")
        previous = bool(named) or ours.startswith("same")
    assert not wrong
    assert len(ROWS) > 150
