"""Functions of PyTorch's that ask for data inside, where a trace does not see it: made such that it does. Some only
raise (`torch._assert`, `gaussian_nll_loss`), one warns of too few observations (`torch.cov`),
some choose what has a size from data then (`combinations`, `tensor_split`), one wants plain numbers for sizes
(`max_pool1d`)."""

import itertools
import math

import torch

from .checks import checked


def written_out(func, args, kwargs):
    """(whether a call of one of WRITTEN_OUT was made another way, its result)."""
    if func is torch._assert:
        return _asserted(*args, **kwargs)
    result = _FUNCTIONS[func](*args, **kwargs)
    return result is not None, result


def _asserted(condition, message):
    if not isinstance(condition, torch.Tensor) or condition.numel() != 1:
        return False, None
    checked(condition, True)
    return True, None


def _gaussian_nll(input, target, var, full=False, eps=1e-6, reduction="mean"):
    """None where `var` is a number, or where an argument is none that PyTorch takes: it says so."""
    if not isinstance(var, torch.Tensor) or reduction not in ("none", "mean", "sum"):
        return None
    if var.shape != input.shape:
        if input.shape[:-1] == var.shape:
            var = var.unsqueeze(-1)
        elif input.dim() != var.dim() or sum(b for a, b in zip(input.shape, var.shape, strict=True) if a != b) != 1:
            return None
    checked(torch.any(var < 0), False)
    var = torch.where(var < eps, var - var.detach() + eps, var)  # its gradient goes past the bound
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return loss if reduction == "none" else getattr(loss, reduction)()


def _covariance(input, *, correction=1, fweights=None, aweights=None):
    """Of real numbers; None of others, or where PyTorch warns of too few observations, or says what is wrong."""
    if input.dim() > 2 or not input.is_floating_point():
        return None
    rows = input if input.dim() == 2 else input.reshape(1, -1)
    observations = rows.shape[1]
    if fweights is not None or aweights is not None:
        return _weighted_covariance(rows, correction, fweights, aweights)
    if observations <= correction:
        return None
    rows = rows - (rows.sum(1) / observations).unsqueeze(1)
    return (torch.mm(rows, rows.t()) / (observations - correction)).squeeze()


def _weighted_covariance(rows, correction, fweights, aweights):
    for weights in (fweights, aweights):
        if weights is not None and (weights.dim() != 1 or weights.shape[0] != rows.shape[1]):
            return None
        if weights is not None and weights.is_floating_point() is (weights is fweights):
            return None
        if weights is not None:
            checked((weights >= 0).all(), True)
    weights = fweights if aweights is None else aweights if fweights is None else aweights * fweights
    total = weights.sum()
    factor = total
    if correction != 0:
        factor = total - correction * ((weights * aweights).sum() / total if aweights is not None else 1)
    rows = rows - ((rows * weights).sum(1) / total).unsqueeze(1)
    return (torch.mm(rows, (rows * weights).t()) / factor.clamp(min=0)).squeeze()


def _combinations(input, r=2, with_replacement=False):
    """As the indices that they are, one graph for each number of elements."""
    if input.dim() != 1 or type(r) is not int or r < 1:
        return None
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = list(choose(range(int(input.shape[0])), r))
    if not places:
        return input.new_empty((0, r))
    return input[torch.tensor(places, device=input.device)]


def _tensor_split(input, tensor_indices_or_sections=None, dim=0, **_):
    """By places in a tensor; None of what is no tensor, or the number of parts."""
    places = tensor_indices_or_sections
    if not isinstance(places, torch.Tensor) or places.dim() != 1 or input.dim() == 0:
        return None
    size, rows = input.shape[dim], input.movedim(dim, 0)
    ends = itertools.pairwise([0, *(place.clamp(-size, size) for place in places.unbind()), None])
    return tuple(rows[begin:end].movedim(0, dim) for begin, end in ends)


def _max_pool1d(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """As one of two dims, the first of size 1. None of what PyTorch refuses."""
    given = [_only(each) for each in (kernel_size, stride or kernel_size, padding, dilation)]
    if input.dim() not in (2, 3) or None in given:
        return None
    places = ((least, each) for least, each in zip((1, 1, 0, 1), given, strict=True))
    made = torch.nn.functional.max_pool2d(
        input.unsqueeze(-2), *places, ceil_mode=ceil_mode, return_indices=return_indices
    )
    return tuple(each.squeeze(-2) for each in made) if return_indices else made.squeeze(-2)


def _only(number):
    if isinstance(number, tuple | list):
        return number[0] if len(number) == 1 else None
    return number


def _correlation(input):
    covariance = _covariance(input)
    if covariance is None:
        return None
    if covariance.dim() == 0:
        return covariance / covariance
    deviations = covariance.diagonal().sqrt()
    return (covariance / deviations.unsqueeze(1) / deviations.unsqueeze(0)).clip(-1, 1)


_FUNCTIONS = {
    torch.nn.functional.gaussian_nll_loss: _gaussian_nll,
    torch.cov: _covariance,
    torch.Tensor.cov: _covariance,
    torch.combinations: _combinations,
    **dict.fromkeys((torch.tensor_split, torch.Tensor.tensor_split), _tensor_split),
    **dict.fromkeys((torch.nn.functional.max_pool1d, torch.max_pool1d), _max_pool1d),
    torch.corrcoef: _correlation,
    torch.Tensor.corrcoef: _correlation,
}
WRITTEN_OUT = frozenset((torch._assert, *_FUNCTIONS))
