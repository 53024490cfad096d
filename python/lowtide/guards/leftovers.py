"""Tensors of a trace that something still holds after it."""

import bdb
import collections
import gc
import types

import torch


def let_go(reference):
    """Takes a tensor out of what holds it; in words, what that was."""
    said = None
    for holder in gc.get_referrers(reference()):
        if isinstance(holder, types.FrameType) or _is_of_frame(holder):
            continue
        if isinstance(holder, list | set | collections.deque):
            kept = [item for item in holder if item is not reference()]
            holder.clear()
            (holder.update if isinstance(holder, set) else holder.extend)(kept)
        elif isinstance(holder, dict):
            for key in [key for key, value in holder.items() if value is reference()]:
                del holder[key]
        elif isinstance(holder, types.CellType):
            del holder.cell_contents
        said = said or f"a {type(holder).__qualname__}"
    return said


def _is_of_frame(holder):
    """Whether it is a frame's variables, which a debugger has looked at, or belongs to a node of the exporter's."""
    if not isinstance(holder, dict):
        return False
    others = gc.get_referrers(holder)
    return any(
        isinstance(other, types.FrameType | bdb.Bdb | torch.fx.Node)
        or (type(other) is dict and other.get("curframe_locals") is holder)
        for other in others
    )
