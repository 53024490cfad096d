"""What forward read, as places of the tree: attributes of modules and of the objects that they hold, globals and
variables around the functions that ran."""

import collections
import functools
import os
import sys
import types

import torch

from lowtide import _lowtide

from .code import asks_which, content, free_cells, is_users, is_users_name, names, texts
from .function_caches import CACHED
from .sameness import has_dict
from .states import flags, is_state, variables
from .values import CONTAINERS, LARGEST, PLAIN, base_of, is_plain
from .words import MISSING, module_words

Way, Expected = _lowtide.Guards.Way, _lowtide.Guards.Expected
_TABLES = ("_parameters", "_buffers", "_modules")
_DEEPEST = 8  # containers in containers


def add_reads(guards, seen):
    """Adds the places of what a trace read to a tree that has the structure of its module."""
    _Reads(guards, seen).run()


class _Reads:
    def __init__(self, guards, seen):
        self._guards, self._seen = guards, seen
        self._asked = {}  # id of an owner → (owner, names)
        for (owner_id, name), owner in seen.reads.items():
            self._asked.setdefault(owner_id, (owner, []))[1].append(name)
        self._places = {}  # (parent, way, key) → number
        self._owners = set()  # ids of those whose reads are placed
        self._roots = {}  # id of a table of globals → its place
        self._functions = set()  # code of those whose surroundings are placed
        self._of_classes = set()  # (class, name) that are placed
        self._classes = {}  # class of the user's that forward names → number
        self._members = set()  # (id of a module, names) that are placed
        self._told = set()  # names in the code that ran
        self._pending = collections.deque()

    def run(self):
        for module, number, path in list(self._guards.modules.values()):
            self._owner(module, number, module_words(path))
        for hook, number in list(self._guards.hooks) if self._seen.of_hooks else ():
            self._object(hook, number, _DEEPEST)
        for code, table in self._seen.codes.items():
            self._later(self._code, code.co_names, texts(code), table)
        told = None
        while told != len(self._told):
            told = len(self._told)
            self._finish()
            for cls, number in list(self._classes.items()):
                self._named_of_class(cls, number)
            self._finish()
        for owner, _ in list(self._asked.values()):
            if id(owner) not in self._owners:  # it was reached in a way that no place describes
                self._object(owner, self._place(0, Way.ROOT, None, owner, Expected.SAME, None), _DEEPEST)
                self._finish()

        if not any(map(asks_which, self._seen.codes)):
            self._guards.let_objects_be_replaced(self._asked.keys() | self._seen.opaque)

    def _later(self, function, *arguments):
        self._pending.append(functools.partial(function, *arguments))

    def _finish(self):
        while self._pending:
            self._pending.popleft()()

    def _place(self, parent, way, key, value, expected, subject):
        at = (parent, way, key if key is not None else id(value))
        if at not in self._places:
            self._places[at] = self._guards.add(parent, way, key, value, expected, subject)
        return self._places[at]

    # ---- attributes

    def _owner(self, owner, number, words):
        if id(owner) in self._owners:
            return
        self._owners.add(id(owner))
        for name in sorted(name for module, name in self._seen.counters if module == id(owner)):
            subject = "attribute", f"attribute `{name}` of {words}"
            attributes = self._guards.dict_of(number)
            place = self._place(attributes, Way.ITEM, name, vars(owner)[name], Expected.ANYTHING, subject)
            self._guards.type_of(place, int)
        for name in self._asked.get(id(owner), (None, ()))[1]:
            self._read(owner, number, name, ("attribute", f"attribute `{name}` of {words}"))
        if id(owner) in self._seen.opaque:
            for name, value in list(vars(owner).items()):
                subject = "attribute", f"attribute `{name}` of {words}"
                self._value(self._guards.dict_of(number), Way.ITEM, name, value, subject)

    def _read(self, owner, number, name, subject):
        attributes = vars(owner) if has_dict(owner) else None
        if attributes is not None and name in attributes:
            self._value(self._guards.dict_of(number), Way.ITEM, name, attributes[name], subject)
            return
        if isinstance(owner, torch.nn.Module) and any(name in attributes.get(table, ()) for table in _TABLES):
            return
        found = next((vars(cls)[name] for cls in type(owner).__mro__ if name in vars(cls)), MISSING)
        if found is MISSING or isinstance(found, types.MemberDescriptorType):
            value = getattr(owner, name, MISSING)
            if value is MISSING and attributes is not None:
                self._place(self._guards.dict_of(number), Way.ITEM, name, MISSING, Expected.NOTHING, subject)
            elif value is MISSING or found is not MISSING or isinstance(value, PLAIN):
                self._value(number, Way.ATTRIBUTE, name, value, subject)
            return
        if attributes is not None and not isinstance(found, property):
            before = found if isinstance(found, PLAIN) else MISSING
            self._guards.add_absent(self._guards.dict_of(number), name, subject, before)
        cls = type(owner)
        self._of_class(cls, self._guards.type_of(number, cls), name, found)

    def _of_class(self, cls, number, name, found):
        """Once, whichever its objects are."""
        if (cls, name) in self._of_classes:
            return
        self._of_classes.add((cls, name))
        subject = "attribute", f"attribute `{name}` of the class {cls.__qualname__}"
        if isinstance(found, staticmethod | classmethod):
            found = found.__func__ if isinstance(found, staticmethod) else MISSING
        if found is not MISSING and (
            not hasattr(found, "__get__") or isinstance(found, types.FunctionType | property | CACHED)
        ):
            place = self._value(number, Way.ATTRIBUTE, name, found, subject)
            if isinstance(found, property) and isinstance(found.fget, types.FunctionType):
                self._later(
                    self._function,
                    found.fget,
                    self._place(place, Way.ATTRIBUTE, "fget", found.fget, Expected.SAME, None),
                )

    def _named_of_class(self, cls, number):
        """Of a class that forward names: what else it names of it."""
        for base in cls.__mro__:
            if is_users(base):
                for name in sorted(self._told & vars(base).keys()):
                    if name[:2] != "__":
                        self._of_class(cls, number, name, vars(base)[name])

    # ---- values

    def _value(self, parent, way, key, value, subject, shallow=False, depth=_DEEPEST):
        """The place of a value and of what is in it."""
        if (parent, way, key) in self._places:
            return self._places[parent, way, key]
        if self._seen.held and (id(self._guards.now(parent)), key) in self._seen.held:
            number = self._place(parent, way, key, value, Expected.ANYTHING, subject)
            self._guards.type_of(number, type(value))
            return number
        if id(value) in self._seen.numbers_of:
            number = self._place(parent, way, key, value, Expected.SAME, subject)
            words = ("attribute", "the numbers of a tensor that forward reads as Python's")
            self._place(number, Way.ATTRIBUTE, "_version", value._version, Expected.EQUAL, words)
            return number
        expected, parts = self._expected(value, shallow or not depth)
        number = self._place(parent, way, key, value, expected, subject)
        for at, part in parts:
            self._value(number, Way.ITEM, at, part, None, shallow, depth - 1)
        if expected is Expected.SAME:
            self._object(value, number, depth)
        return number

    def _expected(self, value, shallow):
        """(what a place expects of a value, [(key, part)])."""
        if value is MISSING:
            return Expected.NOTHING, ()
        if isinstance(value, PLAIN):
            return Expected.EQUAL, ()
        if isinstance(value, torch.Tensor):
            return Expected.TENSOR, ()
        if is_plain(value):
            return Expected.KEY, ()
        if shallow or not isinstance(value, CONTAINERS):
            return Expected.SAME, ()
        base = base_of(value)
        if base.__len__(value) > LARGEST:
            return Expected.SAME, ()
        if isinstance(value, list | tuple):
            return Expected.SIZE, list(enumerate(base.__iter__(value)))
        if isinstance(value, dict):
            return Expected.KEYS, list(dict.items(value))
        return Expected.KEY if isinstance(value, collections.deque) else Expected.SET, ()

    def _object(self, value, number, depth):
        if is_state(value):
            self._value(number, Way.RESULT, None, value(), ("global", f"{value.__module__}.{value.__name__}()"))
        elif isinstance(value, torch.nn.Module):
            self._guards.module(value, number)
            for module, place, path in list(self._guards.modules.values()):
                self._owner(module, place, module_words(path))
        elif isinstance(value, types.FunctionType):
            self._later(self._function, value, number)
        elif isinstance(value, types.MethodType):
            self._value(number, Way.ATTRIBUTE, "__self__", value.__self__, None, False, depth - 1)
            self._value(number, Way.ATTRIBUTE, "__func__", value.__func__, None, False, depth - 1)
        elif isinstance(value, functools.partial):
            for part in ("func", "args", "keywords"):
                self._value(number, Way.ATTRIBUTE, part, getattr(value, part), None, False, depth - 1)
        elif type(value) is CACHED:
            self._value(number, Way.ATTRIBUTE, "__wrapped__", getattr(value, "__wrapped__", MISSING), None)
        elif isinstance(value, type):
            if is_users(value):
                self._classes.setdefault(value, number)
        elif not isinstance(value, types.ModuleType):
            self._owner(value, number, f"a {type(value).__qualname__}")

    # ---- code

    def _function(self, function, number):
        code, table = function.__code__, function.__globals__
        of_user = is_users_name(table.get("__name__"))
        ran = code in self._seen.codes
        if code in self._functions or not (of_user or ran):
            return
        self._functions.add(code)
        words = f"around {function.__qualname__}"
        if of_user:
            subject = "global", f"the code of {function.__qualname__}"
            self._place(number, Way.ATTRIBUTE, "__code__", code, Expected.SAME, subject)
        if function.__closure__:
            cells = self._place(number, Way.ATTRIBUTE, "__closure__", function.__closure__, Expected.ANYTHING, None)
        for name, at, cell in free_cells(function):
            place = self._place(cells, Way.ITEM, at, cell, Expected.ANYTHING, None)
            value = content(cell, MISSING)
            self._value(
                place, Way.ATTRIBUTE, "cell_contents", value, ("global", f"variable `{name}` {words}"), not of_user
            )
        for which in ("__defaults__", "__kwdefaults__"):
            if (value := getattr(function, which)) is not None:
                subject = "global", f"the defaults of {function.__qualname__}"
                self._value(number, Way.ATTRIBUTE, which, value, subject, not of_user)
        if isinstance(wrapped := getattr(function, "__wrapped__", None), types.FunctionType):
            place = self._place(number, Way.ATTRIBUTE, "__wrapped__", wrapped, Expected.SAME, None)
            self._later(self._function, wrapped, place)
        self._code(names(code), texts(code), table)

    def _code(self, told, strings, table):
        told = frozenset(told)
        self._told |= told
        for name in variables(told, strings):
            self._variable(name)
        for name in sorted(told):
            if name in table:
                self._global(table, name, told)

    def _global(self, table, name, told):
        origin = table.get("__name__")
        subject = "global", f"global `{name}` of {origin}"
        place = self._value(self._root(table, origin), Way.ITEM, name, table[name], subject, not is_users_name(origin))
        if isinstance(table[name], types.ModuleType):
            self._member(table[name], place, told)

    def _member(self, module, number, told):
        """What code names of a module that it names."""
        if (id(module), told) in self._members:
            return
        self._members.add((id(module), told))
        for name in sorted(told & vars(module).keys()):
            subject, value = ("global", f"global `{name}` of {module.__name__}"), vars(module)[name]
            place = self._value(self._guards.dict_of(number), Way.ITEM, name, value, subject, not is_users(module))
            if isinstance(value, types.ModuleType):
                self._member(value, place, told)
        for name in flags(module, told):
            subject = "global", f"flag `{name}` of {module.__name__}"
            self._value(number, Way.ATTRIBUTE, name, getattr(module, name), subject)

    def _variable(self, name):
        """Of the environment."""
        environment = self._place(self._root(vars(os), "os"), Way.ITEM, "environ", os.environ, Expected.ANYTHING, None)
        subject = "global", f"environment variable `{name}`"
        self._value(environment, Way.ITEM, name, os.environ.get(name, MISSING), subject)

    def _root(self, table, origin):
        if id(table) not in self._roots:
            found = sys.modules.get(origin)
            if found is not None and vars(found) is table:
                self._roots[id(table)] = self._place(0, Way.ROOT, origin, table, Expected.ANYTHING, None)
            else:  # code that was run with globals of its own
                self._roots[id(table)] = self._place(0, Way.ROOT, None, table, Expected.SAME, None)
        return self._roots[id(table)]
