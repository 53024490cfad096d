"""Slices and masks in indices while forward is traced."""

import torch


def ask_for_ends(index):
    """Of tensor[index]: whether each end of a slice counts from the front or from the back, which becomes a guard. Of
    one that could be either, such as `offset - length`, the exporter would make a slice as long as data say."""
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, slice):
            for end in (part.start, part.stop):
                if isinstance(end, torch.SymInt) and end.node.has_hint():
                    bool(end >= 0)


def ask_for_masks(tensor, index, values=None):
    """Of tensor[index] = values: a mask is as large as what it chooses from, and what is written behind it as what is
    there, which become guards. The exporter does not ask where something is written."""
    parts, at = index if isinstance(index, tuple) else (index,), 0
    for place, part in enumerate(parts):
        if part is Ellipsis:
            at = tensor.dim() - sum(map(_dims_of, parts[place + 1 :]))
            continue
        if isinstance(part, torch.Tensor) and part.dtype is torch.bool:
            for size, other in zip(part.shape, tensor.shape[at:], strict=False):
                torch._check(size == other)
        at += _dims_of(part)
    if isinstance(parts[0], torch.Tensor) and parts[0].dtype is torch.bool and isinstance(values, torch.Tensor):
        _ask_for_broadcast(values.shape, tensor.shape[parts[0].dim() :] if len(parts) == 1 else ())


def ask_for_mask_of_selection(tensor, mask):
    """Of masked_select, which the exporter does not ask either."""
    _ask_for_broadcast(mask.shape, tensor.shape)


def _ask_for_broadcast(sizes, others):
    """Whether the last of two shapes' sizes are equal, or 1, as far as the example tells them."""
    for size, other in zip(reversed(sizes), reversed(others), strict=False):
        if all(not isinstance(each, torch.SymInt) or each.node.has_hint() for each in (size, other)):
            bool(size == other)


def _dims_of(part):
    """How many dims a part of an index, which is no Ellipsis, stands for."""
    if part is None or isinstance(part, bool):
        return 0
    return part.dim() if isinstance(part, torch.Tensor) and part.dtype is torch.bool else 1
