"""Modules on inputs of another dtype than their parameters' are a user's mistake: PyTorch's error, and no fallback."""

import warnings

import pytest
import torch
from modules import Of

from lowtide.errors import UnsupportedError
from lowtide.ortmodule import ORTModule

nn, F64, I64 = torch.nn, torch.float64, torch.int64
CASES = {
    "Linear on f64": (nn.Linear(4, 3), (2, 4), F64),
    "Linear on i64": (nn.Linear(4, 3), (2, 4), I64),
    "LayerNorm on f64": (nn.LayerNorm(4), (2, 4), F64),
    "BatchNorm on f64": (nn.BatchNorm1d(4), (2, 4), F64),
    "Conv2d on f64": (nn.Conv2d(4, 3, 3), (2, 4, 5, 5), F64),
    "Embedding on f32": (nn.Embedding(4, 3), (2, 4), torch.float32),
    "floating labels": (lambda x: nn.functional.cross_entropy(x, x[:, 0]), (2, 4), torch.float32),
}


def wrapped_and_input(name):
    function, sizes, dtype = CASES[name]
    child = {"child": function} if isinstance(function, nn.Module) else {}
    return ORTModule(Of(lambda m, x: function(x), **child)), torch.ones(sizes, dtype=dtype)


def error_of(function, x):
    with pytest.raises(Exception) as raised:
        function(x)
    return raised.value


@pytest.mark.parametrize("name", CASES)
def test_a_dtype_that_pytorch_refuses(name, monkeypatch):
    wrapped, x = wrapped_and_input(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = error_of(wrapped, x)
    theirs = error_of(CASES[name][0], x)
    assert type(ours) is type(theirs) and str(ours).split("\n")[0] == str(theirs).split("\n")[0]
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    wrapped, x = wrapped_and_input(name)
    assert isinstance(error_of(wrapped, x), UnsupportedError)
