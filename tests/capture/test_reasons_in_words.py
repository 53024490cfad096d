"""Reasons name the user's line, not one of a library's C code, and say what a parameter is instead of one."""

import numpy
import pytest
import torch

from lowtide.capture import capture
from lowtide.errors import UnsupportedError
from lowtide.ortmodule import ORTModule


class Shuffled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x[numpy.random.permutation(len(x))])


def test_a_line_of_c_code_is_not_the_users():
    line = Shuffled.forward.__code__.co_firstlineno + 1
    with pytest.raises(UnsupportedError, match=rf"\(test_reasons_in_words.py:{line}\)"):
        capture(Shuffled(), (torch.ones(3, 4),))


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_a_computed_parameter_is_named():
    wrapped, x = ORTModule(torch.nn.Linear(4, 4)), torch.ones(2, 4)
    faster = {name: 0.5 * p for name, p in wrapped.named_parameters()}
    found = torch.func.functional_call(wrapped, faster, (x,))
    torch.testing.assert_close(found, torch.nn.functional.linear(x, faster["weight"], faster["bias"]))
    found.sum().backward()
    assert wrapped.weight.grad is not None
    reason = "parameter 'weight' is a tensor that was computed, as torch.func.functional_call puts it there"
    assert reason in wrapped.fallback_reason
