"""Whether code could tell a stand-in for a string from a string, and a size of a trace from an int: isinstance takes it
for one, type() does not."""

import dis
import functools
import sys
import types

from .code import functions_of, is_ours, names


def may_ask_for_classes(seen):
    """Of the code that ran in a trace, and of the functions that this code names."""
    return _Search(seen).finds()


def may_ask_for_numbers_classes(seen):
    """The same of `type(n) is int` and of `case int():`."""
    return _Search(seen, _asks_for_numbers).finds()


def may_ask_for_tensors_classes(seen):
    """The same of `type(x) is torch.Tensor`: in a trace there are none."""
    return _Search(seen, _asks_for_tensors).finds()


class _Search:
    def __init__(self, seen, asks=None):
        self._asks_itself = asks or _asks_type
        self._pending = list(seen.codes.items())
        self._known = set()  # code
        self._told = set()  # names in it
        self._classes = {type(owner) for owner in seen.reads.values()}

    def finds(self):
        while self._pending:
            while self._pending:
                code, table = self._pending.pop()
                if code not in self._known and self._asks(code, table):
                    return True
            self._methods()
        return False

    def _asks(self, code, table):
        self._known.add(code)
        if self._asks_itself(code):
            return True
        told = names(code)
        self._told |= told
        for name in told & table.keys():
            value = table[name]
            if isinstance(value, types.ModuleType) and not _is_left_out(value.__name__):
                for member in told & vars(value).keys():
                    self._name(vars(value)[member])
            else:
                self._name(value)
        return False

    def _name(self, value):
        if isinstance(value, type):
            self._classes.add(value)
        elif isinstance(value, types.FunctionType):
            self._function(value)

    def _function(self, function):
        if not _is_left_out(function.__module__):
            self._pending.append((function.__code__, function.__globals__))

    def _methods(self):
        bases = {base for cls in self._classes for base in cls.__mro__ if not _is_left_out(base.__module__)}
        for base in bases:
            for name, function in functions_of(base):
                if name in self._told and function.__code__ not in self._known:
                    self._function(function)


def _is_left_out(name):
    """Python's own modules read a string that they are given, which is noticed."""
    return is_ours(name) or (name or "").partition(".")[0] in sys.stdlib_module_names


def _asks_type(code):
    """Of anything but `self`."""
    parts = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    if any(_asks_type(part) for part in parts):
        return True
    if "type" not in code.co_names:
        return False
    steps = [step for step in dis.get_instructions(code) if step.opname != "PUSH_NULL"]
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval == "type":
            if following is None or not (following.opname.startswith("LOAD_FAST") and following.argval == "self"):
                return True
    return False


def _asks_for(classes, loads, matches, code):
    """Whether code compares a type with one of these. `loads`: instructions that bring them; `matches`: or asks by a
    pattern."""
    if any(_asks_for(classes, loads, matches, part) for part in code.co_consts if isinstance(part, types.CodeType)):
        return True
    if not any(name in code.co_names for name in classes):
        return False
    asks_type = "type" in code.co_names or "__class__" in code.co_names
    steps = list(dis.get_instructions(code))
    for place, step in enumerate(steps):
        if step.opname not in loads or step.argval not in classes:
            continue
        following = [each.opname for each in steps[place + 1 : place + 4]]
        if matches and following[1:2] == ["MATCH_CLASS"] or asks_type and not set(_COMPARES).isdisjoint(following):
            return True
    return False


_COMPARES = ("IS_OP", "COMPARE_OP", "CONTAINS_OP")
_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_asks_for_numbers = functools.partial(_asks_for, ("int", "float", "bool"), _GLOBAL, True)
_asks_for_tensors = functools.partial(_asks_for, ("Tensor", "Parameter", "Buffer"), (*_GLOBAL, "LOAD_ATTR"), False)
