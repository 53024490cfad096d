"""one_hot without a number of classes, and bincount: as large as the largest label says, a size from data.

one_hot(labels)    labels[..., None] == arange(labels.max().item() + 1)
"""

import torch

_one_hot, _bincount = torch.nn.functional.one_hot, torch.bincount


def one_hot(tensor, num_classes=-1):
    if num_classes != -1 or tensor.dtype != torch.int64:
        return _one_hot(tensor, num_classes)
    classes = torch.arange(_count(tensor, tensor.max()), device=tensor.device)
    return (tensor.unsqueeze(-1) == classes).to(torch.int64)


def bincount(input, weights=None, minlength=0):
    if input.dim() != 1 or input.is_floating_point() or input.dtype is torch.bool:
        return _bincount(input, weights, minlength)  # which says what is wrong
    largest = input.max() if type(minlength) is int and minlength < 1 else input.max().clamp(min=minlength - 1)
    count, labels = _count(input, largest), input.to(torch.int64)
    if weights is None:
        weights, dtype = torch.ones_like(labels), torch.int64
    else:
        torch._check(weights.shape == input.shape, lambda: "weights and input have the same length")
        dtype = weights.dtype if weights.dtype is torch.float32 else torch.float64
    return torch.zeros(count, dtype=dtype, device=input.device).scatter_add(0, labels, weights.detach().to(dtype))


def _count(labels, largest):
    """How many numbers there are from 0 to `largest`, a tensor, that is no label's less."""
    torch._check(labels.min().item() >= 0, lambda: "labels are no less than 0")
    last = largest.item()
    torch._check(last >= 0)
    return last + 1
