"""Collectives in forward, as users write them: losses and parameters are eager's on two processes."""

import pytest
from ranks import run_ranks

PIECES = {
    "LOWTIDE_PIECES": "1",
    "ORTMODULE_FALLBACK_POLICY": "FALLBACK_UNSUPPORTED_TORCH_MODEL|FALLBACK_UNSUPPORTED_ONNX_MODEL",
}


@pytest.mark.parametrize(
    "cases, variables",
    [
        (("reduced", "used_before_the_wait", "gathered", "scattered", "several", "exchanged"), {}),
        pytest.param(("all_reduce_of_nn", "all_gather_of_nn", "tensor_parallel"), PIECES, marks=pytest.mark.long),
    ],
)
def test_losses_and_parameters_are_eagers(cases, variables):
    output = run_ranks("collective_cases.py", *cases, **variables)
    assert output.count(": right on rank") == 2 * len(cases)
