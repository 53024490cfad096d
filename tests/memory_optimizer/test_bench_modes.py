"""The modes of ./dev bench training and recompute that ask the memory optimizer for something."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "training"))
from modes import find_mode, is_mode, split_modes  # noqa: E402


def test_a_plan_is_a_mode_and_keeps_its_commas():
    names = split_modes("eager,plan:A+B+:1:-1,C+:2:3,level1,plan:D+:1:1")
    assert names == ["eager", "plan:A+B+:1:-1,C+:2:3", "level1", "plan:D+:1:1"]
    assert all(map(is_mode, names)) and not is_mode("nonsense")
    assert find_mode("plan:A+B+:1:-1,C+:2:3").environment == {"ORTMODULE_MEMORY_OPT_CONFIG": "A+B+:1:-1,C+:2:3"}
    assert find_mode("budget:400MiB").wrap.keywords == {"memory_budget": "400MiB"} and is_mode("budget:400MiB")
    assert find_mode("level2").environment == {"ORTMODULE_MEMORY_OPT_LEVEL": "2"}
