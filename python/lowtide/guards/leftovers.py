"""Tensors of a trace that something still holds after it."""

import bdb
import collections
import gc
import types

import torch

from .function_caches import CACHED, WITHOUT_TENSORS, things_below

_COLLECTIONS = (list, set, collections.deque)
_TABLES = (collections.OrderedDict, dict)


def alive(references):
    return [reference for reference in references if reference() is not None]


def let_go(left):
    """Takes tensors out of what holds them; in words, what one of these was, or None. `left`: a function that gives
    weak references to them."""
    for generation in (0, 2):  # forward itself may have collected, and what it held then is not young
        if not left():
            return None
        gc.collect(generation)
    holder = _let_go(left())
    if holder is None and gc.get_freeze_count() and left():
        gc.unfreeze()  # Python finds no holder among what gc.freeze() put aside
        holder = _let_go(left())
    return holder


def _let_go(references):
    """Python looks through all of its objects to find who holds some: once for all of them."""
    tensors = [tensor for tensor in [reference() for reference in references] if tensor is not None]
    said = "the cache of a function" if tensors and _clear_caches(tensors) else None
    tensors.clear()
    tensors += [tensor for tensor in [reference() for reference in references] if tensor is not None]
    if not tensors:
        return said
    ids = {id(tensor) for tensor in tensors}
    holders = [
        holder
        for holder in gc.get_referrers(*tensors)
        if holder is not tensors and not isinstance(holder, types.FrameType)
    ]
    left_alone = _of_frames([holder for holder in holders if isinstance(holder, dict)])
    for holder in holders:
        if id(holder) in left_alone:
            continue
        if (kind := _kind(holder, _COLLECTIONS)) is not None:
            kept = [item for item in kind.__iter__(holder) if id(item) not in ids]
            kind.clear(holder)
            (kind.update if kind is set else kind.extend)(holder, kept)
        elif (kind := _kind(holder, _TABLES)) is not None:
            for key in [key for key, value in kind.items(holder) if id(value) in ids]:
                kind.__delitem__(holder, key)
        elif isinstance(holder, types.CellType):
            del holder.cell_contents
        said = said or f"a {type(holder).__qualname__}"
    return said


def _clear_caches(tensors):
    """Of functions under functools.cache and lru_cache, those whose results hold one of the tensors: nobody can take a
    single result out, and one without its tensors would be a wrong one. Whether there were any."""
    ids = {id(tensor) for tensor in tensors}
    caches = [thing for thing in gc.get_objects() if type(thing) is CACHED and _holds_one(thing, ids)]
    for cache in caches:
        cache.cache_clear()
    return bool(caches)


def _holds_one(cache, ids):
    if (getattr(cache, "__module__", None) or "").split(".")[0] in WITHOUT_TENSORS:
        return False
    return any(id(thing) in ids for level in things_below([cache]) for thing in level)


def _kind(holder, kinds):
    """Python's own class of a container: its methods run no code of users', which may forbid to take anything out."""
    return next((kind for kind in kinds if isinstance(holder, kind)), None)


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
