"""Attributes that forward gives tensors: a graph's results are other objects, without them."""

import torch

from lowtide.errors import UnsupportedError


class TensorAttributes:
    """Of one trace."""

    def __init__(self, given):
        """`given`: what stands for the call's tensors and the module's, without users' attributes."""
        self._given = {id(tensor): (tensor, set(vars(tensor))) for tensor in given}
        self._tracers = set().union(*(names for _, names in self._given.values()))

    def refuse(self, outputs):
        """Raises UnsupportedError where forward has set one that is there afterwards. Names with an underscore before
        them are PyTorch's own."""
        made = [leaf for leaf in outputs if isinstance(leaf, torch.Tensor) and id(leaf) not in self._given]
        for tensor, names in (*self._given.values(), *((tensor, self._tracers) for tensor in made)):
            new = sorted(name for name in vars(tensor).keys() - names if not name.startswith("_"))
            if names and new:
                raise UnsupportedError(f"forward sets attribute `{new[0]}` of a tensor")
