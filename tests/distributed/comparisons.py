"""Of what was trained in two ways."""

import torch


def assert_same(found, expected, tolerance=1e-6):
    for ours, theirs in zip(found, expected, strict=True):
        # transformers computes gpt2's loss in f32, whose rounding is a part of the largest entries; biases of keys are
        # nothing but rounding.
        atol = max(tolerance * float(theirs.abs().max()), 1e-12)
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=atol)


def assert_as_near(found, other, exact, start):
    """bf16 keeps 8 bits: `found` may be three times as far from `exact` as `other` is. `start`: before all steps."""
    for ours, theirs, true, before in zip(found, other, exact, start, strict=True):
        ours, theirs, true, before = (tensor.double() for tensor in (ours, theirs, true, before))
        limit = 3 * max((theirs - true).norm(), 2.0**-9 * (true - before).norm())
        distance = (ours - true).norm()
        assert distance <= limit, f"{distance:.1e} from the exact result, {limit:.1e} is rounding"
