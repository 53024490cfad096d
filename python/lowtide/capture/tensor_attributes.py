"""Attributes that forward gives tensors: a graph's results are other objects, without them."""

import torch

from lowtide.errors import UnsupportedError


class TensorAttributes:
    """Of one trace."""

    def __init__(self, given):
        """`given`: the trace's tensors that are there before forward."""
        self._tracers = vars(torch.empty(0)).keys() | {"_is_param"}
        self._given = [(tensor, self._of_users(tensor)) for tensor in given]
        self._ids = {id(tensor) for tensor in given}

    def refuse(self, outputs):
        """Raises UnsupportedError where forward has set one that is there afterwards."""
        made = [(leaf, {}) for leaf in outputs if isinstance(leaf, torch.Tensor) and id(leaf) not in self._ids]
        for tensor, before in (*self._given, *made):
            now = self._of_users(tensor)
            if changed := [name for name in before | now if before.get(name, self) is not now.get(name, self)]:
                raise UnsupportedError(f"forward sets attribute `{changed[0]}` of a tensor")

    def _of_users(self, tensor):
        return {name: value for name, value in vars(tensor).items() if name not in self._tracers}
