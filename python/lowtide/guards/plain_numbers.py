"""`int(labels.max()) + 1`, `x[: int(count)]`, `h * float(x.mean())`, `float(len(chosen))` in forward. Python's int()
and float() want plain numbers, which a trace has none of. In the Python modules whose code asks so, `int` or `float` is
a class that gives what item() gives, and `range(0, length, step)` one that gives sizes."""

import contextlib
import dis
import itertools
import sys
import types

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from .code import functions_of, is_ours
from .replaced import replaced_attribute
from .values import MOST_TIMES

CONVERSIONS = {torch.Tensor.__int__: "int", torch.Tensor.__float__: "float"}
WHOLE = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))
_REAL = WHOLE | {torch.float64, torch.float32, torch.bfloat16, torch.float16}
_TAKES = {"int": WHOLE, "float": _REAL}  # dtypes of tensors
_PLAIN = {"int": int, "float": float}
_LAYERS = ("torch.nn.modules.batchnorm",)  # of PyTorch, which ask: an average of all batches so far
_ASKED = (
    (torch.SymInt, "__index__", "float"),
    (torch.SymInt, "__index__", "range"),
    (torch.SymInt, "__int__", "int"),
    (torch.SymFloat, "__int__", "int"),
    (torch.SymFloat, "__float__", "float"),
)


class PlainNumbers:
    """Of one trace."""

    def __init__(self):
        self.asked_by = None  # (name of the Python module whose code called it, "int" or "float")
        self.of_sizes = set()  # the same, and "math", of what made a graph one for these sizes alone
        self._functions_take_sizes = set()  # names of Python modules

    def note(self, func, tensor, frame):
        """`func` of CONVERSIONS was called by `frame`."""
        kind = CONVERSIONS[func]
        if _is_one(tensor, kind):
            self._note(kind, frame)

    def patches(self):
        """(class, name, what is in its place) of what Python's int() and float() ask."""
        for cls, name, kind in _ASKED:
            yield cls, name, self._noting(getattr(cls, name), kind)

    def _noting(self, ask, kind):
        def noting(number):
            frame = _frame_of_users()
            if kind in frame.f_code.co_names and (kind != "range" or _gives_three(frame)):
                if not free_unbacked_symbols(number):
                    self._note_size(number, kind, frame)
                elif kind == "float" or isinstance(number, torch.SymFloat):
                    self._note(kind, frame)
            return ask(number)

        return noting

    def of_math(self, number):
        """Whether a function of Python's math of a size is PyTorch's of a tensor."""
        is_size = isinstance(number, torch.SymInt | torch.SymFloat) and not free_unbacked_symbols(number)
        if not is_size or not number.node.expr.free_symbols:
            return False
        name = _frame_of_users().f_globals.get("__name__")
        if name not in self._functions_take_sizes:
            self.of_sizes.add((name, "math"))
        return name in self._functions_take_sizes

    @contextlib.contextmanager
    def standing_in(self, asked):
        """`asked`: (name of a Python module, what is another one in it meanwhile)."""
        self._functions_take_sizes = {name for name, kind in asked if kind == "math"}
        with contextlib.ExitStack() as stack:
            for name, kind in asked:
                if kind != "math":
                    stack.enter_context(replaced_attribute(sys.modules[name], kind, _another(kind)))
            yield

    def _note_size(self, number, kind, frame):
        name = frame.f_globals.get("__name__")
        if number.node.expr.free_symbols and not is_ours(name) and _may_have_another(sys.modules.get(name), kind):
            self.of_sizes.add((name, kind))

    def _note(self, kind, frame):
        name = frame.f_globals.get("__name__")
        if (not is_ours(name) or name in _LAYERS) and _may_have_another(sys.modules.get(name), kind):
            self.asked_by = name, kind


def _frame_of_users():
    frame = sys._getframe(1)
    while is_ours(frame.f_globals.get("__name__")):  # answers.py looks at it, too
        frame = frame.f_back
    return frame


def _gives_three(frame):
    """Whether it calls something with three arguments: range() has a step."""
    code, at = frame.f_code.co_code, frame.f_lasti
    return "CALL" in dis.opname[code[at]] and code[at + 1] == 3  # PRECALL calls in Python 3.11, once it is specialized


def _is_one(value, kind):
    return isinstance(value, torch.Tensor) and value.dtype in _TAKES[kind] and not value.dim()


def _places(start, stop, step):
    """What range() gives, as sizes: a graph is of as many, and of all that they may be."""
    given, found = (start, stop, step), []
    if step > 0:
        while start < stop:
            if len(found) == MOST_TIMES:
                break
            found.append(start)
            start = start + step
        else:
            return tuple(found)
    return range(*given)


def _another_range():
    class Meta(type):
        def __call__(cls, *args):
            is_of_sizes = len(args) == 3 and any(isinstance(each, torch.SymInt) for each in args)
            return _places(*args) if is_of_sizes else range(*args)

        def __instancecheck__(cls, thing):
            return isinstance(thing, range)

    return Meta("range", (), {})


def _another(kind):
    if kind == "range":
        return _another_range()
    plain = _PLAIN[kind]

    class Meta(type):
        def __call__(cls, *args, **kwargs):
            if len(args) == 1 and not kwargs:
                number = args[0].item() if _is_one(args[0], kind) else args[0]
                if isinstance(number, torch.SymInt | torch.SymFloat):
                    return torch.sym_float(number) if kind == "float" else torch.sym_int(number)
                if number is not args[0]:
                    return plain(number) if type(number) in (int, float) else number
            return plain(*args, **kwargs)

        def __instancecheck__(cls, thing):
            return isinstance(thing, plain)

        def __subclasscheck__(cls, other):
            return issubclass(other, plain)

    return Meta(kind, (plain,), {})


def _may_have_another(module, kind):
    """Whether its code calls the conversion and asks by isinstance(), and does nothing else with it that would tell."""
    if module is None or kind in vars(module):
        return False
    functions = [value for value in vars(module).values() if isinstance(value, types.FunctionType)]
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    functions += [function for cls in classes if cls.__module__ == module.__name__ for _, function in functions_of(cls)]
    return not any(_tells(function.__code__, kind) for function in functions)


def _tells(code, kind):
    if any(_tells(part, kind) for part in code.co_consts if isinstance(part, types.CodeType)):
        return True
    if kind not in code.co_names:
        return False
    steps = [step for step in dis.get_instructions(code) if step.opname != "PUSH_NULL"]
    following = itertools.pairwise(steps)
    return any(
        _loads(step, kind) and after.opname in ("IS_OP", "COMPARE_OP", "CONTAINS_OP") for step, after in following
    )


def _loads(step, name):
    return step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval == name
