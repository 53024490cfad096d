"""Tensors of a trace that something still holds after it."""

import bdb
import collections
import gc
import types

import torch


def let_go(references):
    """Takes tensors out of what holds them; in words, what one of these was, or None. Python looks through all of its
    objects to find who holds some: once for all of them."""
    tensors = [tensor for tensor in [reference() for reference in references] if tensor is not None]
    ids = {id(tensor) for tensor in tensors}
    holders = [
        holder
        for holder in gc.get_referrers(*tensors)
        if holder is not tensors and not isinstance(holder, types.FrameType)
    ]
    left_alone = _of_frames([holder for holder in holders if isinstance(holder, dict)])
    said = None
    for holder in holders:
        if id(holder) in left_alone:
            continue
        if isinstance(holder, list | set | collections.deque):
            kept = [item for item in holder if id(item) not in ids]
            holder.clear()
            (holder.update if isinstance(holder, set) else holder.extend)(kept)
        elif isinstance(holder, dict):
            for key in [key for key, value in holder.items() if id(value) in ids]:
                del holder[key]
        elif isinstance(holder, types.CellType):
            del holder.cell_contents
        said = said or f"a {type(holder).__qualname__}"
    return said


def _of_frames(holders):
    """Ids of those dicts that are a frame's variables, which a debugger has looked at, or that belong to a node of the
    exporter's."""
    ids, found = {id(holder) for holder in holders}, set()
    for other in gc.get_referrers(*holders):
        if isinstance(other, types.FrameType | bdb.Bdb | torch.fx.Node):
            found |= ids & {id(held) for held in gc.get_referents(other)}
        elif type(other) is dict:
            found |= ids & {id(other.get("curframe_locals"))}
    return found
