"""What Python code can change while it is traced: copied before, compared and put back after, by identity.

Containers are read and written by the methods of Python's own classes: no code of users' runs here.
"""

import collections
import contextlib
import random
import sys
import types

import torch

from .function_caches import StandIn
from .sameness import is_of_trace, same, slots_of
from .values import LARGEST, PLAIN, base_of, is_array

_HELD_HERE_ALONE = 2  # of sys.getrefcount, which counts its own argument


class Kept:
    """Objects as they were when they were first seen."""

    def __init__(self):
        self._things = {}  # id → what is kept of an object

    def __contains__(self, thing):
        return id(thing) in self._things

    def keep(self, thing, where, names=None):
        """`where`: in words, or a function from an entry's key to words. `names`: of a dict, what alone is compared.
        Returns whether there is something in it to compare."""
        if id(thing) in self._things:
            return True
        kind = next((kind for classes, kind in _KINDS if isinstance(thing, classes)), None)
        if kind is None:
            kind = _array_or_generator(thing)
        is_container = kind in (_Items, _Entries, _Elements)
        if kind is None or (is_container and names is None and base_of(thing).__len__(thing) > LARGEST):
            return False
        self._things[id(thing)] = kind(thing, where) if names is None else _Named(thing, where, names)
        return True

    def keep_names(self, table, where, names):
        """More entries of a dict of which only some are compared."""
        known = self._things.get(id(table))
        if known is None:
            self.keep(table, where, names)
        elif isinstance(known, _Named):
            known.add(names)

    def keep_class(self, thing, where):
        """Which class an object has."""
        self._things.setdefault((id(thing), "class"), _Class(thing, where))

    def keep_slots(self, thing, where):
        """The attributes of an object that are not in its __dict__."""
        if slots_of(type(thing)):
            self._things.setdefault(id(thing), _Slots(thing, where))

    def keep_quietly(self, table):
        """A dict that is put back, and whose changes are somebody else's business."""
        self._things[id(table)] = _Entries(table, None)

    def is_new(self, table, key, value):
        """Whether a dict that is kept has this entry now, and had no such one."""
        thing = self._things.get(id(table))
        return isinstance(thing, _Entries) and key in table and thing.before.get(key, thing) is not value

    def take(self, table, is_taken, numbers=(), always=()):
        """{key: value} of a dict's new entries for which `is_taken` holds, and of those that are numbers in `numbers`,
        which are (id of a dict, key), and of the keys `always`; they are put back."""
        before = self._things[id(table)].before
        taken = {
            key: value
            for key, value in table.items()
            if key in always
            or self.is_new(table, key, value)
            and (is_taken(value) or (type(value) in (int, float) and (id(table), key) in numbers))
        }
        for key in taken:
            if key in before:
                table[key] = before[key]
            else:
                del table[key]
        return taken

    def take_from_containers(self, is_computed, is_item, others):
        """(container, key, value, [(key, what was there)]) of what else of dicts, lists and cells forward has computed;
        it is put back. Value of a list: all of it, for one that grows from call to call has a graph for each length.
        `others`: ids of dicts that are somebody else's business."""
        taken = []
        for thing in list(self._things.values()):
            if thing.where is None or id(thing.thing) in others or not thing.is_readable() or thing.changed() is None:
                continue
            if type(thing) is _Entries and type(thing.thing) in (dict, collections.defaultdict):
                new = {key: value for key, value in thing.now().items() if self.is_new(thing.thing, key, value)}
                in_order = list({**thing.before, **new}) == list(thing.now())
                if in_order and any(map(is_computed, new.values())) and all(map(is_item, new.values())):
                    for key, value in self.take(thing.thing, is_item).items():
                        before = [(key, thing.before[key])] if key in thing.before else []
                        taken.append((thing.thing, key, value, before))
            elif type(thing) is _Items and type(thing.thing) is list:
                now, before = thing.now(), thing.before
                is_new = not any(one is other for one, other in zip(now, before, strict=False))
                if is_new and any(map(is_computed, now)) and all(map(is_item, now)):
                    taken.append((thing.thing, None, now, list(enumerate(before))))
                    thing.put(before)
            elif type(thing) is _Cell and (now := thing.now()) and is_computed(now[0]):
                taken.append((thing.thing, None, now[0], [(None, value) for value in thing.before]))
                thing.put(thing.before)
        return taken

    def changes(self):
        """The Changes at this moment, or None. While PyTorch traces, its own generators cannot be read."""
        return self._changes(thing for thing in self._things.values() if thing.is_readable())

    def draws(self):
        """The same of PyTorch's generators."""
        return self._changes(thing for thing in self._things.values() if not thing.is_readable())

    @staticmethod
    def _changes(things):
        changed = [thing for thing in things if thing.where is not None and thing.changed() is not None]
        return Changes(changed) if changed else None

    @contextlib.contextmanager
    def undone(self):
        """Whatever is changed inside is put back."""
        inner = Kept()
        inner._things = {key: thing.renewed() for key, thing in self._things.items() if thing.is_readable()}
        try:
            yield
        finally:
            inner.restore()

    def restore(self):
        for thing in self._things.values():
            thing.restore()

    def forget_dead(self):
        """Lets go of what nobody else holds: what a property has made, for one."""
        dead = True
        while dead:  # which may hold others
            dead = [key for key, thing in self._things.items() if sys.getrefcount(thing.thing) <= _HELD_HERE_ALONE]
            for key in dead:
                del self._things[key]


class Changes:
    """What forward changed."""

    def __init__(self, things):
        self._things = [(thing, thing.now()) for thing in things]
        self.words = things[0].changed()
        # [(container, keys)] of what is not settled by a call or two; None for keys: all of it.
        self.recurring = [(thing.thing, thing.recurring_keys()) for thing in things]

    def may_become_stable(self):
        """Whether a later call could find all of it done: random numbers are drawn again, a tensor is another one."""
        symbolic = torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool
        return not any(
            isinstance(thing, _Generator) or any(isinstance(value, symbolic) for value in thing.values_of(now))
            for thing, now in self._things
        )

    def keys(self):
        """[(dict, key)] of the changed entries, while they are."""
        entries = [thing for thing, _ in self._things if isinstance(thing, _Entries)]
        return [(thing.thing, key) for thing in entries for key in thing.changed_keys()]

    def of(self, *classes):
        """[(dict, key)] of the entries that were of one of these classes and are another one of it; none where
        something else changed, too."""
        found = []
        for thing, now in self._things:
            if type(thing) is not _Entries or list(now) != list(thing.before):
                return []
            keys = [key for key, value in now.items() if not same(thing.before[key], value)]
            pairs = [(type(now[key]), type(thing.before[key])) for key in keys]
            if any(is_now is not was or was not in classes for is_now, was in pairs):
                return []
            found += [(thing.thing, key) for key in keys]
        return found

    def grown(self):
        """The lists that forward has appended to."""
        return [
            thing.thing
            for thing, now in self._things
            if type(thing) is _Items
            and type(thing.thing) is list
            and len(now) > len(thing.before)
            and all(one is other for one, other in zip(thing.before, now, strict=False))
        ]

    def make(self):
        """Makes them again, after they were undone."""
        for thing, now in self._things:
            thing.put(now)


class _Thing:
    def __init__(self, thing, where):
        self.thing, self.where = thing, where
        self.before = self.now()

    def renewed(self):
        return type(self)(self.thing, self.where)

    def values_of(self, state):
        return state

    def is_readable(self):
        """While PyTorch traces."""
        return True

    def changed(self):
        return None if same(self.before, self.now()) else self.where

    def recurring_keys(self):
        """Of what was changed, and will be again in each call."""
        return None

    def restore(self):
        now = self.now()
        if len(now) != len(self.before) or any(a is not b for a, b in zip(self.before, now, strict=True)):
            self.put(self.before)


class _Items(_Thing):
    def now(self):
        return list(base_of(self.thing).__iter__(self.thing))

    def put(self, items):
        base = list if isinstance(self.thing, list) else collections.deque
        base.clear(self.thing)
        base.extend(self.thing, items)


class _Elements(_Thing):
    def now(self):
        return list(set.__iter__(self.thing))

    def changed(self):
        now = self.now()
        if {id(item) for item in now} == {id(item) for item in self.before}:
            return None
        plain = all(isinstance(item, PLAIN) for item in (*now, *self.before))
        return None if plain and set(now) == set(self.before) else self.where

    def put(self, items):
        set.clear(self.thing)
        set.update(self.thing, items)


class _Entries(_Thing):
    def now(self):
        return dict(_base(self.thing).items(self.thing))

    def changed(self):
        key = next(self._changed_keys(), self)
        if key is self:
            return None
        return self.where(key) if callable(self.where) else self.where

    def recurring_keys(self):
        return [key for key in self._changed_keys() if not _may_settle(self.before.get(key))]

    def changed_keys(self):
        return list(self._changed_keys())

    def _changed_keys(self):
        now = self.now()
        for key in (*self.before, *(key for key in now if key not in self.before and not is_of_trace(key))):
            if key not in now or key not in self.before or not same(self.before[key], now[key]):
                yield key

    def values_of(self, state):
        return state.values()

    def restore(self):
        now = self.now()
        if list(now) != list(self.before) or any(now[key] is not value for key, value in self.before.items()):
            self.put(self.before)

    def put(self, entries):
        base = _base(self.thing)
        base.clear(self.thing)
        for key, value in entries.items():
            base.__setitem__(self.thing, key, value)


class _Named(_Entries):
    """Some entries of a dict, a module's globals for example."""

    def __init__(self, thing, where, names):
        self.thing, self.where, self.before = thing, where, {}
        self.add(names)

    def add(self, names):
        new = (name for name in names if name in self.thing and name not in self.before)
        self.before.update((name, _beneath_tracer(self.thing[name])) for name in new)

    def renewed(self):
        return _Named(self.thing, self.where, self.before)

    def now(self):
        return {name: _beneath_tracer(self.thing[name]) for name in self.before if name in self.thing}

    def put(self, entries):
        for name in self.before:
            if name in entries:
                self.thing[name] = entries[name]
            else:
                self.thing.pop(name, None)


class _Cell(_Thing):
    def now(self):
        try:
            return (self.thing.cell_contents,)
        except ValueError:  # an empty one
            return ()

    def recurring_keys(self):
        return None if self.before and not _may_settle(self.before[0]) else ()

    def put(self, content):
        if content:
            self.thing.cell_contents = content[0]
        else:
            del self.thing.cell_contents


class _Array(_Thing):
    """NumPy's numbers, which are changed in place."""

    def now(self):
        return self.thing.copy()

    def changed(self):
        return None if self.before.tobytes() == self.thing.tobytes() else self.where

    def restore(self):
        if self.changed() is not None:
            self.put(self.before)

    def put(self, numbers):
        self.thing[...] = numbers


class _Class(_Thing):
    def now(self):
        return (type(self.thing),)

    def put(self, state):
        object.__setattr__(self.thing, "__class__", state[0])


class _Slots(_Named):
    """Attributes of an object without a __dict__."""

    def now(self):
        return {name: getattr(self.thing, name) for name in slots_of(type(self.thing)) if hasattr(self.thing, name)}

    def __init__(self, thing, where):
        self.thing, self.where = thing, where
        self.before = self.now()

    def renewed(self):
        return _Slots(self.thing, self.where)

    def put(self, entries):
        for name in slots_of(type(self.thing)):
            if name in entries:
                object.__setattr__(self.thing, name, entries[name])
            elif hasattr(self.thing, name):
                object.__delattr__(self.thing, name)


class _Generator(_Thing):
    """Of random numbers."""

    def changed(self):
        return None if _bits(self.now()) == _bits(self.before) else f"{self.where}, from which it draws"

    def restore(self):
        if self.changed() is not None:
            self.put(self.before)


class _PythonGenerator(_Generator):
    def now(self):
        return self.thing.getstate()

    def put(self, state):
        self.thing.setstate(state)


class _TorchGenerator(_Generator):
    def is_readable(self):
        return False

    def now(self):
        return self.thing.get_state()

    def put(self, state):
        self.thing.set_state(state)


class _NumpyGenerator(_Generator):
    def now(self):
        return self.thing.bit_generator.state if hasattr(self.thing, "bit_generator") else self.thing.get_state()

    def put(self, state):
        if hasattr(self.thing, "bit_generator"):
            self.thing.bit_generator.state = state
        else:
            self.thing.set_state(state)


def _bits(state):
    if isinstance(state, torch.Tensor):
        state = state.numpy()
    if is_array(state):
        return state.tobytes()
    if isinstance(state, dict):
        return [(key, _bits(value)) for key, value in state.items()]
    return [_bits(item) for item in state] if isinstance(state, tuple) else state


_KINDS = (
    ((list, collections.deque), _Items),
    (dict, _Entries),
    (set, _Elements),
    (types.CellType, _Cell),
)


def _array_or_generator(thing):
    numpy = sys.modules.get("numpy")
    if is_array(thing):
        return _Array if thing.flags.writeable and not thing.dtype.hasobject else None
    if isinstance(thing, torch.Generator):
        return _TorchGenerator
    if isinstance(thing, random.Random):
        return None if isinstance(thing, random.SystemRandom) else _PythonGenerator
    known = numpy is not None and isinstance(thing, numpy.random.Generator | numpy.random.RandomState)
    return _NumpyGenerator if known else None


def _beneath_tracer(value):
    """What torch.fx.wrap has named, in whose place the exporter's tracer puts a function of its own while it runs; a
    cached function."""
    if type(value) is StandIn:
        return value._lowtide_cache
    is_stand_in = isinstance(value, types.FunctionType) and value.__globals__.get("__name__", "")[:9] == "torch.fx."
    return getattr(value, "__wrapped__", value) if is_stand_in else value


def _may_settle(before):
    """Whether what was there looks like something that forward sets once: a mode, a flag, what is made when needed."""
    return before is None or isinstance(before, str | int)


def _base(table):
    return collections.OrderedDict if isinstance(table, collections.OrderedDict) else dict
