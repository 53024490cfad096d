"""Draws into a tensor between numbers that are none of Python's, while forward is traced: tensors hold them, as of
NEFTune's noise (`noise.uniform_(-bound, bound)`), or they change from call to call. Ops of their own hold constants."""

import torch

from .checks import checked
from .traced_draws import DrawnTensor

NOISE = frozenset((torch.Tensor.uniform_, torch.Tensor.normal_))
_SYMBOLIC = (torch.SymInt, torch.SymFloat)
_NUMBERS = (int, float, *_SYMBOLIC)


def noised(func, observation, args, kwargs):
    """The call of one of NOISE, as draws of a fixed kind and what is computed of them; None of one by constants, and
    where PyTorch says what is wrong."""
    return (_uniform if func is torch.Tensor.uniform_ else _normal)(observation, *args, **kwargs)


def _uniform(observation, input, *bounds, generator=None, **named):
    low, high = _in_tensors(observation, input, bounds, {"from": 0, "to": 1}, named)
    if low is None or generator is not None:
        return None
    checked(low <= high, True)
    return input.copy_(torch.rand_like(input) * (high - low) + low)


def _normal(observation, input, *moments, generator=None, **named):
    mean, deviation = _in_tensors(observation, input, moments, {"mean": 0, "std": 1}, named)
    if mean is None or generator is not None:
        return None
    checked(deviation >= 0, True)
    return input.copy_(torch.randn_like(input) * deviation + mean)


def _in_tensors(observation, input, given, defaults, named):
    """A 0-d tensor for each of `defaults`, which has the call's arguments by name; Nones where there is no need."""
    none = [None] * len(defaults)
    if not (given or named) or len(given) > len(defaults) or not named.keys() <= defaults.keys():
        return none
    found = [*({**defaults, **dict(zip(defaults, given, strict=False)), **named}).values()]
    # An export with numbers has to be the one with constants: code may have computed these of such a number.
    may_be_held = observation.held.places and not isinstance(input, DrawnTensor)
    if not may_be_held and all(type(each) in (int, float) for each in found):
        return none
    if not all(each.numel() == 1 if isinstance(each, torch.Tensor) else isinstance(each, _NUMBERS) for each in found):
        return none
    return [_in_tensor(each) for each in found]


def _in_tensor(number):
    if isinstance(number, torch.Tensor):
        return number.detach().reshape(()).double()
    return torch.scalar_tensor(number, dtype=torch.float64)
