"""Numbers that Python objects hold and that change from call to call: attributes, also of classes and in slots, entries
of lists and dicts, globals, variables around functions. A call hands those to a graph as it hands numbers among its
arguments.

A place is text, from the module on ("encoder.beta", "config.rates['low']") or from a module of Python's
("train:SCALE").
"""

import ast
import contextlib
import functools
import re
import sys
import types

from .replaced import element_at, put_element
from .sameness import slots_of
from .values import may_vary

HELD = "self"  # the keyword argument, which no method can have, that brings {text of a place: number}
_STEP = re.compile(r"""\.?(\w+)|\[('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|-?\d+)\]""")
_TABLES = ("_modules", "_buffers", "_parameters")
_OF_CODE = ("__closure__", "cell_contents", "__self__", "__func__", "__wrapped__", "func", "__class__")
_MISSING = object()


def with_held(kwargs, texts, module):
    """A call's keyword arguments with what is in these places now, if it is an int or a float."""
    found = {text: value for text in texts if is_number(value := value_at(module, text))}
    return {**kwargs, HELD: found} if found else kwargs


def is_number(value):
    return type(value) is not str and may_vary(value)


def value_at(module, text):
    try:
        return element_at(*container_of(module, text))
    except _NOT_THERE:
        return _MISSING


_NOT_THERE = (KeyError, IndexError, AttributeError, TypeError, StopIteration)


def container_of(module, text):
    """(a dict, a list, a cell, a class or an object with slots, key)."""
    owner, key = way_to(module, text)[-1]
    if isinstance(owner, types.CellType):
        return owner, None
    is_name = _parsed(text)[-1][0]
    if is_name and (isinstance(owner, type) or key in slots_of(type(owner))):
        return owner, key
    container = vars(owner) if is_name else owner
    if not isinstance(container, list | dict):
        raise TypeError(text)
    return container, key


def way_to(module, text):
    """[(object, key of the next in it)] on the way to a number, from the module, or from one of Python's, on."""
    root, *steps = _parsed(text)
    way, owner = [], module if root is None else sys.modules[root]
    for is_name, key in steps[:-1]:
        way.append((owner, key))
        owner = _attribute(owner, key) if is_name else owner[key]
    return [*way, (owner, steps[-1][1])]


def _attribute(owner, name):
    if name in _OF_CODE or isinstance(owner, type) or name in slots_of(type(owner)):
        return getattr(owner, name)
    table = vars(owner)
    tables = (table, *(table.get(which, {}) for which in _TABLES))
    return next(found for found in tables if name in found)[name]


@functools.lru_cache(maxsize=1024)
def _parsed(text):
    """(the module of Python's or None, then (whether it is an attribute, key))."""
    root, colon, path = text.partition(":") if re.match(r"[\w.]+:", text) else ("", "", text)
    steps = [(True, name) if name else (False, ast.literal_eval(key)) for name, key in _STEP.findall(path)]
    return (root if colon else None, *steps)


def text_of(steps):
    """Of [(Way by its name, key)] from a root to a number; None for a place that cannot be written to.

    A root is ("ROOT", None) for the module, else ("ROOT", name of one of Python's)."""
    text, above = "", None
    for way, key in steps:
        if way == "ROOT":
            text = f"{key}:" if key else ""
        elif way == "TYPE" or way == "ATTRIBUTE" or way == "ITEM" and _is_name(above, key):
            name = "__class__" if way == "TYPE" else key
            text += name if not text or text[-1] == ":" else f".{name}"
        elif way == "ITEM" and above[0] not in ("DICT", "ROOT") and type(key) in (str, int):
            text += f"[{key!r}]"
        elif way != "DICT" and (way, key) != ("ITEM", "_modules"):
            return None
        above = way, key
    return text


def _is_name(above, key):
    is_table = above[0] in ("DICT", "ROOT") or above == ("ITEM", "_modules")
    return is_table and key != "_modules" and type(key) is str and re.fullmatch(r"\w+", key) is not None


def names_in(text):
    """(the module of Python's that a place is in, or None, the attributes on the way to it and its own)."""
    root, *steps = _parsed(text)
    return root, [key for is_name, key in steps if is_name]


def told(text):
    """As code names it."""
    return f"self.{text}" if _parsed(text)[0] is None else text.replace(":", ".", 1)


class InPlace:
    """Symbolic numbers, or those of an earlier call, in their places for a time."""

    def __init__(self, module, numbers, keeps_new=False):
        """`numbers`: {text: number}; `keeps_new`: whether those stay that somebody has put there in the meantime."""
        self._keeps_new = keeps_new
        self._things, self._before, self.places = [], [], set()
        self.add((*container_of(module, text), number) for text, number in numbers.items())

    def add(self, things):
        """(container, key, what lies there for the time) of further ones."""
        for container, key, thing in things:
            self._things.append((container, key, thing))
            self._before.append(element_at(container, key))
            self.places.add((id(container), "cell_contents" if key is None else key))

    def __contains__(self, number):
        """Whether it is one of them, also of an export with constants that is compared with one without."""
        return any(number is each for _, _, each in self._things)

    def __enter__(self):
        for container, key, number in self._things:
            put_element(container, key, number)

    def __exit__(self, kind, *_):
        keeps_new = self._keeps_new and kind is None
        for (container, key, number), before in zip(self._things, self._before, strict=True):
            with contextlib.suppress(*_NOT_THERE):  # forward has taken it out
                if not keeps_new or element_at(container, key) is number:
                    put_element(container, key, before)
