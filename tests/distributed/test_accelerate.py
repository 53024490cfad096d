"""accelerate and transformers' Trainer on two processes, unchanged."""

import pytest
from ranks import run_ranks

pytestmark = pytest.mark.long


# accelerate 1.15 divides the tied decoder of the plain bert twice with its plugin, which torch 2.13 refuses.
CASES = [
    ("gpt2", ("accelerate", "trainer", "fsdp_plugin", "trainer_fsdp")),
    ("bert", ("accelerate", "trainer")),
]


@pytest.mark.parametrize("model, cases", CASES)
def test_training_is_eagers(model, cases):
    output = run_ranks("library_cases.py", model, *cases)
    assert output.count(": right on rank") == 2 * len(cases)
