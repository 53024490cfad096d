"""Calls of dropout while forward is traced: of nothing, and by a rate that changes from call to call."""

import torch

DROPOUTS = frozenset(
    (torch.dropout, torch.feature_dropout, torch.alpha_dropout, torch.feature_alpha_dropout)
    + (torch.nn.functional.dropout, torch.nn.functional.dropout2d)
    + (torch.nn.functional.alpha_dropout, torch.nn.functional.feature_alpha_dropout)
)
_OF_ELEMENTS = (torch.dropout, torch.nn.functional.dropout)


def dropped(func, observation, args, kwargs):
    """What a call of one of DROPOUTS is if not its own op: its input, where it drops nothing, and for a rate that is an
    input of the graph the draws and what they choose. None of any other call."""
    is_off, result = _of_nothing(*args, **kwargs)
    if is_off:
        return result
    return _written_out(observation, *args, **kwargs) if func in _OF_ELEMENTS else None


def _of_nothing(input, p=None, training=None, inplace=False, *, train=None):
    is_off = train is False if training is None else training is False
    return type(p) in (int, float) and (p == 0 or (is_off and 0 <= p <= 1)), input


def _written_out(observation, input, p=0.5, training=True, inplace=False, *, train=True):
    """An op of its own holds its rate as a constant."""
    if p not in observation.held or inplace or not (training and train):
        return None

    def holds(condition):
        return observation.comparisons.answer(condition) if isinstance(condition, torch.SymBool) else condition

    if holds(p > 0):
        if holds(p < 1):
            keeps = torch.rand_like(input, dtype=torch.float32) >= p
            return torch.where(keeps, input, 0) / (1 - p)
        return input * 0 if holds(p == 1) else None
    return input if holds(p == 0) else None
