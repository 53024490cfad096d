"""torch._foreach_… in forward: as PyTorch's own code does where it has no kernel for all at once, tensor by tensor."""

import torch

_PREFIX = "_foreach_"
_LISTS = list | tuple
_KEYWORDS = frozenset(("alpha", "dtype", "memory_format", "non_blocking", "ord", "value"))


def is_foreach(func):
    return getattr(func, "__name__", "").startswith(_PREFIX) and getattr(torch, func.__name__, None) is func


def one_by_one(func, args, kwargs):
    """(whether it can be, the result)."""
    name = func.__name__.removeprefix(_PREFIX)
    alone = _in_place(name) if name[-1] == "_" else _functional(name)
    given = [*args, *kwargs.values()]
    tensors = next((value for value in given if isinstance(value, _LISTS)), ())
    count = len(tensors)
    # One tensor of numbers for all: whether it is one for each, or the same for all, depends on the op.
    has_table = any(isinstance(value, torch.Tensor) and value.dim() > 0 for value in given)
    same_length = all(len(value) == count for value in given if isinstance(value, _LISTS))
    if alone is None or not count or not same_length or has_table or not kwargs.keys() <= _KEYWORDS:
        return False, None

    def of(value, place):
        return value[place] if isinstance(value, _LISTS) else value

    results = []
    for place in range(count):
        each = [of(value, place) for value in args]
        results.append(alone(*each, **{key: of(value, place) for key, value in kwargs.items()}))
    return True, args[0] if name[-1] == "_" else tuple(results)


def _functional(name):
    others = {"addcdiv": _weighted(torch.addcdiv), "addcmul": _weighted(torch.addcmul), "norm": _norm}
    others |= {"maximum": _of_two(torch.maximum, torch.clamp_min), "minimum": _of_two(torch.minimum, torch.clamp_max)}
    return others.get(name) or getattr(torch, name, None)


def _in_place(name):
    others = {"addcdiv_": _weighted(torch.Tensor.addcdiv_), "addcmul_": _weighted(torch.Tensor.addcmul_)}
    if (method := others.get(name) or getattr(torch.Tensor, name, None)) is not None:
        return method
    function = _functional(name[:-1])
    return function and (lambda tensor, *others: tensor.copy_(function(tensor, *others)))


def _weighted(function):
    return lambda tensor, one, other, value=1: function(tensor, one, other, value=value)


def _of_two(of_tensors, of_number):
    return lambda tensor, other: (of_tensors if isinstance(other, torch.Tensor) else of_number)(tensor, other)


def _norm(tensor, ord=2, dtype=None):  # noqa: A002
    return torch.linalg.vector_norm(tensor, ord, dtype=dtype)
