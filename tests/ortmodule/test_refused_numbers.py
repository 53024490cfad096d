"""Numbers that change in calls that no graph serves: a few exports, not one for each; and what the user hears."""

import pytest
import torch

from lowtide.ortmodule import ORTModule

pytestmark = pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")


class Result:
    def __init__(self, logits):
        self.logits = logits


class Weighted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4, dtype=torch.float64)
        self.in_object, self.tau = True, 1.0
        self.register_buffer("warmth", torch.tensor(1.0, dtype=torch.float64))

    def forward(self, x, beta=1.0, step=0):
        out = self.layer(x) * beta + step
        return Result(out) if self.in_object else out


def x():
    return torch.ones(2, 4, dtype=torch.float64)


def test_what_is_refused_for_three_numbers_is_refused_for_any(exports):
    wrapped = ORTModule(Weighted())
    for index in range(12):
        expected = wrapped.module(x(), 0.1 * index, step=index).logits
        torch.testing.assert_close(wrapped(x(), 0.1 * index, step=index).logits, expected)
        assert "Result" in wrapped.fallback_reason
    assert len(exports) == 3
    wrapped(x().requires_grad_(), 0.3, step=5)
    assert len(exports) == 3


def test_a_module_that_has_changed_is_asked_again(exports):
    wrapped = ORTModule(Weighted())
    for index in range(6):
        wrapped(x(), 0.1 * index)
    wrapped.in_object = False
    before = len(exports)
    for index in range(6):
        torch.testing.assert_close(wrapped(x(), 0.1 * index), wrapped.module(x(), 0.1 * index))
        assert wrapped.fallback_reason is None
    assert len(exports) <= before + 3


def test_other_reasons_are_no_reason_for_all():
    class Branching(Weighted):
        def forward(self, x, step):
            out = self.layer(x)
            if step < 2 and out.sum() > 1e9:
                out = out * 2
            return Result(out) if step == 2 else out * step

    wrapped = ORTModule(Branching())
    for step in range(5):
        wrapped(x(), step)
        assert (wrapped.fallback_reason is None) == (step > 2)


def test_the_limit_tells_which_attribute_changes():
    class Cooling(Weighted):
        def forward(self, x):
            return torch.nn.functional.leaky_relu(self.layer(x), self.tau) * self.warmth

    wrapped = ORTModule(Cooling())
    for index in range(12):
        wrapped.tau = 0.9**index
        wrapped(x())
    assert "attribute `tau` of the module changes" in wrapped.fallback_reason
    assert "in a buffer" in wrapped.fallback_reason
    wrapped.tau = 1.0
    for index in range(12):
        wrapped.warmth.fill_(0.9**index)
        torch.testing.assert_close(wrapped(x()), wrapped.module(x()))
        assert wrapped.fallback_reason is None
