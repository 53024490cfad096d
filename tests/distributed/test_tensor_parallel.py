"""parallelize_module and ORTModule on two processes: losses and parameters are eager's, and collectives are steps."""

import pytest
from ranks import run_ranks

UNSUPPORTED = ("TORCH_MODEL", "ONNX_MODEL", "DATA")
PYTORCH = {"ORTMODULE_FALLBACK_POLICY": "|".join(f"FALLBACK_UNSUPPORTED_{kind}" for kind in UNSUPPORTED)}


@pytest.mark.parametrize(
    "cases, ranks, variables",
    [
        (("mlp", "llama"), 2, {}),
        pytest.param(("budget_of_each",), 2, {}, marks=pytest.mark.long),
        pytest.param(("sequences", "budget", "context_parallel"), 2, {}, marks=pytest.mark.long),
        pytest.param(("unknown", "output", "input"), 2, PYTORCH, marks=pytest.mark.long),
        pytest.param(("and_fully_shard",), 4, {}, marks=pytest.mark.long),
    ],
)
def test_training_is_eagers(cases, ranks, variables):
    output = run_ranks("tensor_parallel_cases.py", *cases, ranks=ranks, **variables)
    assert output.count(": right on rank") == ranks * len(cases)
