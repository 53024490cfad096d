"""Sizes that squeeze has left in place: the exporter does not ask whether they are 1."""

import torch

from lowtide.errors import UnsupportedError

from .sizes import NeedsConstants

aten = torch.ops.aten
_SQUEEZES = {
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.squeeze_.default,
    aten.squeeze_.dim,
    aten.squeeze_.dims,
}


def require_no_ones(target, arguments, sizes):
    """`arguments`: by name, a tensor as its fake one. UnsupportedError where data tells the size; NeedsConstants where
    the size is no input's own and 1, as that of a slice y[:, t : t + 1] whenever there is a t."""
    if target not in _SQUEEZES:
        return
    shape = arguments["self"].shape
    dims = arguments.get("dim", range(len(shape)))
    for dim in [dims] if isinstance(dims, int) else dims:
        if not shape or not isinstance(shape[dim], torch.SymInt):
            continue
        if sizes.is_data(shape[dim]):
            raise UnsupportedError("a size from data may be 1, which squeeze removes")
        size = sizes.resolve(shape[dim])
        if shape[dim].node.hint == 1 and getattr(size, "args", ()):
            raise NeedsConstants(sizes.dims_of(size))
        sizes.add_guard(shape[dim] != 1)
