"""A module of a library whose functions torch.fx.wrap names, as timm's are."""

import torch


@torch.fx.wrap
def grid(size):
    return torch.arange(size, dtype=torch.float64) / size


@torch.fx.wrap
def halves(size):
    return grid(size) / 2


def builtin(name):
    """As cloudpickle, which tensordict knows, puts them into what it makes."""
    table = __builtins__ if isinstance(__builtins__, dict) else vars(__builtins__)
    return table[name]
