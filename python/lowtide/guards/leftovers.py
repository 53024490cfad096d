"""Tensors of a trace that something still holds after it."""

import bdb
import collections
import functools
import gc
import types

import torch

_COLLECTIONS = (list, set, collections.deque)
_TABLES = (collections.OrderedDict, dict)
_CACHE = type(functools.cache(len))  # of lru_cache, too
_DEEPEST = 7  # of tensors below a cache: in the attributes of an object in a pair that is a result, for one
_WIDEST = 100_000  # things on a level: a cache of other things
_WITHOUT_TENSORS = ("sympy", "torch", "mpmath")  # whose caches are many and large


def let_go(references):
    """Takes tensors out of what holds them; in words, what one of these was, or None. Python looks through all of its
    objects to find who holds some: once for all of them."""
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
    caches = [thing for thing in gc.get_objects() if type(thing) is _CACHE and _holds_one(thing, ids)]
    for cache in caches:
        cache.cache_clear()
    return bool(caches)


def _holds_one(cache, ids):
    if (getattr(cache, "__module__", None) or "").split(".")[0] in _WITHOUT_TENSORS:
        return False
    level = [cache]
    for _ in range(_DEEPEST):
        level = [thing for thing in gc.get_referents(*level) if _is_of_a_result(thing)]
        if any(id(thing) in ids for thing in level):
            return True
        if len(level) > _WIDEST:
            return False
    return False


def _is_of_a_result(thing):
    """By its type: isinstance() asks the thing, which may be the proxy of another that is gone."""
    return not issubclass(type(thing), types.FunctionType | types.BuiltinFunctionType | types.ModuleType | type)


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
