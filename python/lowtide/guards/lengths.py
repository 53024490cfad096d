"""len(tensor) while forward is traced."""

import sys

import torch

from .code import is_ours


def with_free_sizes(function):
    """A function in the place of `len`, which makes a number of what it is told: each size of a tensor would have a
    graph of its own."""

    def length(thing):
        if isinstance(thing, torch.Tensor) and thing.dim() and not is_ours(sys._getframe(1).f_globals.get("__name__")):
            return thing.shape[0]
        return function(thing)

    return length
