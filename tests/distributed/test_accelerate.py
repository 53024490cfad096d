"""accelerate and transformers' Trainer on two processes, unchanged."""

import pytest
from ranks import run_ranks

pytestmark = pytest.mark.long


@pytest.mark.parametrize("model", ["gpt2", "bert"])
def test_training_is_eagers(model):
    output = run_ranks("library_cases.py", model, "accelerate", "trainer", "fsdp_plugin")
    assert output.count(": right on rank") == 2 * 3
