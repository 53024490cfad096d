"""What Python code names: globals, closures, attributes. Whose code it is."""

import dis
import functools
import itertools
import sys
import sysconfig
import types
from pathlib import Path

_OURS = ("lowtide", "torch")  # what they read is no part of the user's model


def names(code):
    """All names in a code object and in those inside of it: of globals and of attributes."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if _is_code(constant):
            found |= names(constant)
    return found


def asks_which(code):
    """Whether code may ask which object one is: by `is` with another than None and the like, or by its id."""
    if "id" in code.co_names or any(asks_which(part) for part in code.co_consts if _is_code(part)):
        return True
    if dis.opmap["IS_OP"] not in code.co_code:  # as most; the instructions of others are looked at one by one
        return False
    steps = itertools.pairwise(step.opname for step in dis.get_instructions(code))
    return any(step == "IS_OP" and before != "LOAD_CONST" for before, step in steps)


def _is_code(constant):
    return isinstance(constant, types.CodeType)


def texts(code):
    """All strings in a code object and in those inside of it."""
    found = {constant for constant in code.co_consts if type(constant) is str}
    for constant in code.co_consts:
        if _is_code(constant):
            found |= texts(constant)
        elif isinstance(constant, tuple):
            found |= {part for part in constant if type(part) is str}
    return found


def free_cells(function):
    """[(name, place, cell)] of the variables around a function."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    return [(name, place, cell) for place, (name, cell) in enumerate(cells)]


def content(cell, empty=None):
    """Of a cell, or `empty`."""
    try:
        return cell.cell_contents
    except ValueError:
        return empty


def functions_of(cls):
    """[(name, function)] that a class defines itself, through its descriptors."""
    found = []
    for name, value in vars(cls).items():
        parts = (value,)
        if isinstance(value, staticmethod | classmethod):
            parts = (value.__func__,)
        elif isinstance(value, property):
            parts = (value.fget, value.fset)
        elif isinstance(value, functools.cached_property):
            parts = (value.func,)
        found += [(name, part) for part in parts if isinstance(part, types.FunctionType)]
    return found


def is_ours(name):
    """Whether a module is a part of PyTorch or of lowtide."""
    return (name or "").partition(".")[0] in _OURS


@functools.cache
def is_installed(name):
    """Whether a module came with Python or from a package index: its code does not change under its version."""
    if is_ours(name):
        return True
    module = sys.modules.get(name) or sys.modules.get(name.partition(".")[0])
    path = getattr(module, "__file__", None)
    if path is None:
        return name in sys.builtin_module_names or name.partition(".")[0] in sys.stdlib_module_names
    path = str(Path(path).resolve())
    if "site-packages" in path or "dist-packages" in path:
        return True
    paths = sysconfig.get_paths()
    return any(path.startswith(str(Path(paths[key]).resolve())) for key in ("stdlib", "platstdlib"))


def is_users_name(name):
    """Whether the module of this name is the user's own code."""
    return isinstance(name, str) and not is_installed(name)


def is_users(thing):
    """The same of a class or a module."""
    return is_users_name(thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", None))


def asks_itself(frame):
    """Code of users and of PyTorch's layers: torch.nn.MultiheadAttention takes another way for frozen tensors."""
    name = frame.f_globals.get("__name__") or ""
    return name.startswith(("torch.nn.modules.", "torch.nn.functional")) or not is_ours(name)
