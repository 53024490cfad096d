"""How far two tensors are apart."""

import torch

# Of one op on given inputs: farther off is no rounding.
ROUNDING = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def distance(found, expected):
    """The largest difference relative to the largest element of `expected`; inf where NaN or infinity differ."""
    if found.numel() == 0:
        return 0.0
    found, expected = found.detach().double(), expected.detach().double().reshape(found.shape)
    finite = torch.isfinite(found) & torch.isfinite(expected)
    if not torch.equal(torch.nan_to_num(found[~finite]), torch.nan_to_num(expected[~finite])):
        return float("inf")
    difference = (found - expected)[finite].abs().amax().item() if finite.any() else 0.0
    if difference == 0:
        return 0.0
    scale = expected[finite].abs().amax().item()
    return difference / scale if scale > 0 else float("inf")


def same_bits(first, second):
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return torch.equal(first.reshape(-1).view(torch.uint8), second.reshape(-1).view(torch.uint8))
