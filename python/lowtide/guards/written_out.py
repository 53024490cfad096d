"""Functions of PyTorch's that ask for data inside, where a trace does not see it: made such that it does. Some only
raise (`torch._assert`, `gaussian_nll_loss`), one warns of too few observations (`torch.cov`)."""

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
    """Of real numbers without weights; None of others."""
    if fweights is not None or aweights is not None or input.dim() > 2 or not input.is_floating_point():
        return None
    rows = input if input.dim() == 2 else input.reshape(1, -1)
    observations = rows.shape[1]
    if observations <= correction:
        return None
    rows = rows - (rows.sum(1) / observations).unsqueeze(1)
    return (torch.mm(rows, rows.t()) / (observations - correction)).squeeze()


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
    torch.corrcoef: _correlation,
    torch.Tensor.corrcoef: _correlation,
}
WRITTEN_OUT = frozenset((torch._assert, *_FUNCTIONS))
