"""`int(labels.max()) + 1`, `x[: int(count)]`, `int(mask.sum())` in forward. Python's int() wants a plain number, which
a trace has none of. In the Python modules whose code asks so, `int` is a class that gives what item() gives."""

import contextlib
import dis
import itertools
import sys
import types

import torch

from .code import functions_of, is_ours
from .replaced import replaced_attribute

_WHOLE = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))


class WholeNumbers:
    """Of one trace."""

    def __init__(self):
        self.asked_by = None  # name of the Python module whose code called int() of a tensor

    def note_int(self, tensor, frame):
        name = frame.f_globals.get("__name__")
        if _is_whole(tensor) and not is_ours(name) and _may_have_another_int(sys.modules.get(name)):
            self.asked_by = name

    @contextlib.contextmanager
    def standing_in(self, names):
        """`names`: of Python modules that have another int meanwhile."""
        with contextlib.ExitStack() as stack:
            for name in names:
                stack.enter_context(replaced_attribute(sys.modules[name], "int", _another_int()))
            yield


def _is_whole(value):
    return isinstance(value, torch.Tensor) and value.dtype in _WHOLE and not value.dim()


def _another_int():
    class Meta(type):
        def __call__(cls, *args, **kwargs):
            if len(args) == 1 and _is_whole(args[0]):
                return args[0].item()
            return int(*args, **kwargs)

        def __instancecheck__(cls, thing):
            return isinstance(thing, int)

        def __subclasscheck__(cls, other):
            return issubclass(other, int)

    return Meta("int", (int,), {})


def _may_have_another_int(module):
    """Whether its code calls int() and asks by isinstance(), and does nothing else with it that would tell."""
    if module is None or "int" in vars(module):
        return False
    functions = [value for value in vars(module).values() if isinstance(value, types.FunctionType)]
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    functions += [function for cls in classes if cls.__module__ == module.__name__ for _, function in functions_of(cls)]
    return not any(_tells_ints(function.__code__) for function in functions)


def _tells_ints(code):
    if any(_tells_ints(part) for part in code.co_consts if isinstance(part, types.CodeType)):
        return True
    if "int" not in code.co_names:
        return False
    steps = [step for step in dis.get_instructions(code) if step.opname != "PUSH_NULL"]
    following = itertools.pairwise(steps)
    return any(_is_int(step) and after.opname in ("IS_OP", "COMPARE_OP", "CONTAINS_OP") for step, after in following)


def _is_int(step):
    return step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval == "int"
