"""Lists, dicts and objects among the arguments: what forward puts into them is put into the caller's own after each
call, and where it returns one of them, that is returned."""

import collections
from collections.abc import Mapping
from dataclasses import dataclass

from lowtide.errors import UnsupportedError
from lowtide.guards.sameness import attributes_of, put_attribute

from . import trees
from .sparse_arguments import SparseArgument


@dataclass(frozen=True)
class Filled:
    """A Write: what one holds after a call."""

    path: tuple  # to it from (args, kwargs), as trees.at takes it
    # By its entries then: the key, and whether the value is another one than before, the next of those written.
    entries: tuple
    step = None

    def make(self, container, values):
        before, rest = dict(_entries(container)), iter(values)
        after = [(key, next(rest) if is_new else before[key]) for key, is_new in self.entries]
        if isinstance(container, list):
            container[:] = [value for _, value in after]
            return
        is_table = isinstance(container, Mapping)
        for key in before.keys() - {key for key, _ in after}:
            if is_table:
                del container[key]
            else:
                object.__delattr__(container, key)
        for key, value in after:
            if key not in before or before[key] is not value:
                if is_table:
                    container[key] = value
                else:
                    put_attribute(container, key, value)


@dataclass(frozen=True)
class Given:
    """Stands for one of them in the output."""

    path: tuple


class GivenContainers:
    """Of one trace."""

    def __init__(self, args, kwargs):
        self._found = list(_containers_of((args, kwargs), ()))
        self._paths = {id(container): path for path, container, _ in self._found}
        self._changed = {}  # id → path of those that forward changes, or what is in them

    def take_writes(self, arguments):
        """[(Filled, values)] at the end of forward. `arguments`: those of the call, of which the trace's are copies."""
        found, callers = [], collections.Counter(id(one) for _, one, _ in _containers_of(arguments, ()))
        for path, container, before in self._found:
            after = _entries(container)
            if _same(before, after):
                continue
            was = dict(before)
            entries = tuple((key, key not in was or was[key] is not value) for key, value in after)
            values = [value for (_, value), (_, is_new) in zip(after, entries, strict=True) if is_new]
            if any(id(inner) in self._paths for _, inner, _ in _containers_of(values, ())):
                raise UnsupportedError("forward puts one of its arguments into another one")
            given = trees.at(arguments, path)
            if callers[id(given)] > 1:
                raise UnsupportedError("forward changes an argument that it also takes under another name")
            if any(isinstance(value, SparseArgument) for _, value in _entries(given)):
                raise UnsupportedError("forward changes a list with a sparse tensor in it")
            found.append((Filled(path, entries), values))
        for path, container, _ in self._found:
            if any(write.path[: len(path)] == path for write, _ in found):
                self._changed[id(container)] = path
        return found

    def is_changed(self, value):
        return id(value) in self._changed

    def standing_for(self, value):
        return Given(self._changed[id(value)])


def put_into(writes, values, args, kwargs):
    """What Filled among `writes` tell, into a call's own arguments; `values`: of all writes that have no step."""
    filled = [write for write in writes if type(write) is Filled]
    found = [trees.at((args, kwargs), write.path) for write in filled]  # before any of them changes
    for write, container, new in zip(filled, found, values[len(values) - len(filled) :], strict=True):
        write.make(container, new)


def _containers_of(value, path):
    """(path, one, its entries)."""
    if (children := trees.named_children(value)) is None:
        return
    if type(value) in (list, dict) or trees.is_opened(value):
        yield path, value, _entries(value)
    for key, child in children:
        yield from _containers_of(child, (*path, key))


def _entries(container):
    if isinstance(container, list):
        return list(enumerate(container))
    return list((container if isinstance(container, Mapping) else attributes_of(container)).items())


def _same(before, after):
    pairs = zip(before, after, strict=False)
    return len(before) == len(after) and all(key == now and value is then for (key, value), (now, then) in pairs)
