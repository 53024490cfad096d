"""`for row in x[:3]`, `x[:3].unbind()`: there are 3 of them, once there are 3 rows. The exporter's own split of a size
that it computes makes parts of which it does not know that they are single rows, and keeps their dim."""

import torch

_unbind = torch.Tensor.unbind


def unbind(tensor, dim=0):
    size = tensor.shape[dim] if tensor.dim() else None
    if not isinstance(size, torch.SymInt) or size.node.expr.is_Symbol or size.node.expr.is_number:
        return _unbind(tensor, dim)
    return tuple(tensor.select(dim, place) for place in range(int(size)))


def rows(tensor):
    """Tensor.__iter__."""
    return iter(unbind(tensor)) if tensor.dim() else torch.Tensor.__iter__(tensor)
