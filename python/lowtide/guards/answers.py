"""What forward has to know of whole numbers that it computes of its arguments alone: `if mask.all():`,
`for i in range(int(labels.max())):`. The call's own tensors answer while forward is traced, and a graph is right for
calls that answer the same: each of them computes these few numbers before it has a graph.

    longest = lengths.max().item()      computed of an argument: u0 to the trace
    x = x[:, :longest]                  a size from data, whatever u0 is
    if longest > 8:                     asked: of this call it is
"""

import contextlib
import sys
import weakref
from dataclasses import dataclass

import sympy
import torch
import torch.utils._pytree as pytree
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, free_unbacked_symbols

from .code import is_ours
from .data import version_of
from .numbers_of_sizes import Inexact, number_of, result_of, size_of, truth_of
from .traced_draws import elsewhere
from .values import MOST_TIMES

_WHOLE = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool))
_MOST_ELEMENTS = 2**16  # of what is computed in each call once more
_MOST_STEPS = 64  # of what a question is about
_SIZE = sympy.Symbol("size", integer=True)
_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.memory_format, torch.layout, type(...))
_MAKERS = frozenset((torch.arange, torch.linspace, torch.tensor, torch.zeros, torch.ones, torch.full))
# Of what these give the trace knows nothing, and Python wants to know.
_ANSWERED = frozenset(
    (torch.Tensor.__bool__, torch.Tensor.__index__, torch.Tensor.__int__, torch.Tensor.__contains__)
    + (torch.equal, torch.Tensor.equal, torch.is_nonzero, torch.Tensor.is_nonzero)
)
_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
_WRITE = frozenset(("__setitem__", *(f"__i{name}__" for name in _OPERATORS)))
_NO_NUMBERS = (type(None), str, torch.dtype, torch.device, torch.memory_format)
_ITEM, _LIST = torch.Tensor.item, torch.Tensor.tolist
# Of a tensor whose rows data count they ask how many there are.
_ROWS = frozenset((_LIST, torch.Tensor.__iter__, torch.Tensor.unbind, torch.unbind))


class _Unknown(Exception):
    """It depends on something else."""


@dataclass(frozen=True, eq=False)
class _Argument:
    kind: str  # as of a Question
    place: int | str

    def value(self, known):
        return known.tensor(self.kind, self.place)


@dataclass(frozen=True, eq=False)
class _Size:
    place: int
    dim: int

    def value(self, known):
        return known.tensor("argument", self.place).shape[self.dim]


@dataclass(frozen=True, eq=False)
class _Computed:
    function: object
    args: tuple
    kwargs: dict

    def value(self, known):
        args, kwargs = pytree.tree_map(known.value, (self.args, self.kwargs))
        return self.function(*args, **kwargs)


@dataclass(frozen=True, eq=False)
class _Formula:
    """Of the exporter's, over what its symbols are."""

    expression: sympy.Basic
    parts: dict  # symbol → node

    def value(self, known):
        found = self.expression.xreplace(
            {symbol: sympy.Integer(known.value(part)) for symbol, part in self.parts.items()}
        )
        return bool(found) if isinstance(found, sympy.logic.boolalg.BooleanAtom) else int(found)


_NODES = (_Argument, _Size, _Computed, _Formula)


class _Values:
    """Of the nodes for one call."""

    def __init__(self, tensor):
        """`tensor`: of a kind and a place, the call's own."""
        self.tensor, self._found = tensor, {}

    def value(self, node):
        if not isinstance(node, _NODES):
            return node
        if node not in self._found:
            self._found[node] = node.value(self)
        return self._found[node]


@dataclass(frozen=True, eq=False)
class Answered:
    """A Question: all that one forward asked, in its order."""

    asked: tuple  # (node, where in the user's code)
    answer: tuple

    def ask(self, tensors, module):
        """As far as the answers are the same."""
        values = _Values(lambda kind, place: tensors[place] if kind == "argument" else _at(module, place))
        found = []
        with torch.no_grad():
            for (node, _), answer in zip(self.asked, self.answer, strict=True):
                try:
                    found.append(values.value(node))
                except Exception as error:  # of an op, as forward would raise it
                    found.append(type(error).__name__)
                if found[-1] != answer:
                    break
        return tuple(found)

    def change(self, tensors, module):
        now = self.ask(tensors, module)
        place = len(now) - 1
        return f"what forward asks at {self.asked[place][1]} was {self.answer[place]}, is now {now[place]}"


def _at(module, path):
    for name in path.split("."):
        module = getattr(module, name)
    return module


class Answers:
    """Of one trace."""

    def __init__(self):
        self.begin({})

    def begin(self, known):
        """`known`: as Given has it."""
        self._nodes = {}  # id of a tensor of the trace → (weak reference, its version, node)
        self._symbols = {}  # of the exporter's → node
        self._sizes, self._dtypes, self._exact = {}, {}, {}  # node → SymInt; dtype of a 0-d tensor; Number, or None
        self._asked, self._known = [], {}  # (node, where, answer); expression → answer
        self._real = {}  # (kind, place) → tensor
        for stand_in, (kind, place, _), tensor in known.values():
            self._real[kind, place] = tensor
            if kind == "argument":
                for dim, size in enumerate(stand_in.shape):
                    if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                        self._symbols.setdefault(size.node.expr, _Size(place, dim))
            if tensor.dtype in _WHOLE and tensor.device.type == "cpu" and tensor.numel() <= _MOST_ELEMENTS:
                self._note(stand_in, _Argument(kind, place))
        self._read = set()  # symbols that item() made
        self._numbers = set()  # those of them that forward has, and not only sizes
        self._values = _Values(lambda kind, place: self._real[kind, place])

    def end(self):
        """What was asked is kept."""
        asked = self._asked
        self.begin({})
        self._asked = asked

    def questions(self):
        if not self._asked:
            return ()
        return (Answered(tuple(each[:2] for each in self._asked), tuple(answer for *_, answer in self._asked)),)

    # ---- what forward computes

    def of_write(self, func, args, kwargs):
        """Before a call: the node of what it writes over all of `args[0]`; None where that is not known."""
        if not self._nodes or not args or not _writes_its_first(func):
            return None
        try:
            args, kwargs = pytree.tree_map(self._operand, (tuple(args), kwargs))
        except _Unknown:
            return None
        return _Computed(_written, (func, *args), kwargs)

    def note(self, func, args, kwargs, result, write=None):
        """`result`: of a call in the trace; `write`: what of_write told before it."""
        if write is not None:
            self._note(args[0], write)
            return
        if func not in _MAKERS and not (self._nodes and any(map(self._holds_some, args))):
            return
        if func is _ITEM or func is _LIST:
            node = self._node(args[0])
            if node is not None:
                self._note_read(result, _Computed(func, (node,), {}))
            return
        parts = list(result) if isinstance(result, tuple | list) else [result]
        if func in _ANSWERED or not parts or not all(isinstance(part, torch.Tensor) for part in parts):
            return
        if kwargs.get("out") is not None or any(part is arg for part in parts for arg in args):
            return
        try:
            node = _Computed(func, *pytree.tree_map(self._operand, (tuple(args), kwargs)))
        except _Unknown:
            return
        for place, part in enumerate(parts):
            self._note(part, node if parts[0] is result else _Computed(_part, (node, place), {}))

    def note_constant(self, tensor, number):
        """`tensor` of the trace holds a number."""
        self._note(tensor, _Computed(torch.tensor, (number,), {"dtype": tensor.dtype}))

    def _note(self, tensor, node):
        self._nodes[id(tensor)] = weakref.ref(tensor), version_of(tensor), node
        if not tensor.dim():
            self._dtypes[node] = tensor.dtype
        for dim, size in enumerate(tensor.shape):
            if isinstance(size, torch.SymInt) and len(symbols := free_unbacked_symbols(size)) == 1:
                self._note_size(size.node.expr, *symbols, _Computed(torch.Tensor.size, (node, dim), {}))

    def _note_size(self, expression, symbol, node):
        """A `symbol` that item() made, or one more than it, is what `node` gives."""
        more = sympy.expand(expression - symbol)
        if more.is_Integer:
            self._symbols.setdefault(symbol, _Formula(_SIZE - more, {_SIZE: node}) if more else node)
            self._read.add(symbol)

    def _node(self, tensor):
        reference, version, node = self._nodes.get(id(tensor), (None, None, None))
        return node if reference is not None and reference() is tensor and version_of(tensor) == version else None

    def _holds_some(self, argument):
        if isinstance(argument, tuple | list):
            return any(map(self._holds_some, argument))
        return id(argument) in self._nodes

    def _operand(self, leaf):
        if isinstance(leaf, torch.Tensor):
            node = self._node(leaf)
        elif isinstance(leaf, torch.SymInt):
            node = self._formula(leaf.node.expr)
            if node is not None and not free_unbacked_symbols(leaf):
                self._sizes[node] = leaf
        elif isinstance(leaf, slice):
            node = _Computed(slice, tuple(map(self._operand, (leaf.start, leaf.stop, leaf.step))), {})
        elif type(leaf) in _PLAIN:
            return leaf
        else:
            node = None
        if node is None:
            raise _Unknown
        return node

    def _formula(self, expression):
        parts = {symbol: self._symbols.get(symbol) for symbol in expression.free_symbols}
        return None if None in parts.values() else _Formula(expression, parts)

    def _note_read(self, numbers, node):
        if isinstance(numbers, list):
            for place, number in enumerate(numbers):
                self._note_read(number, _Computed(_part, (node, place), {}))
        elif isinstance(numbers, torch.SymInt) and numbers.node.expr.is_Symbol:
            self._symbols[numbers.node.expr] = node
            self._read.add(numbers.node.expr)
            self._numbers.add(numbers.node.expr)

    # ---- what it computes of sizes alone

    def sizes_in(self, tree):
        """With sizes in the places of tensors that hold what is computed of them, and of plain numbers."""
        return pytree.tree_map(self._size, tree)

    def _size(self, leaf):
        if isinstance(leaf, slice):
            return slice(*map(self._size, (leaf.start, leaf.stop, leaf.step)))
        try:
            return size_of(self._exact_in(leaf))
        except Inexact:
            return leaf

    def _exact_in(self, tensor):
        node = self._node(tensor) if isinstance(tensor, torch.Tensor) else None
        if node not in self._dtypes:
            raise Inexact
        return self._exact_of(node)

    def _exact_of(self, node):
        if not isinstance(node, _Computed):
            return number_of(self._sizes.get(node, node))
        if node not in self._exact:
            try:
                self._exact[node] = self._exact_result(node)
            except Inexact:
                self._exact[node] = None
        if self._exact[node] is None:
            raise Inexact
        return self._exact[node]

    def _exact_result(self, node):
        function, args = node.function, node.args
        if function is _written:
            function, *args = args
        if node not in self._dtypes or not (name := getattr(function, "__name__", "")):
            raise Inexact
        name = name.replace("__i", "__") if name in _WRITE else name
        known = [each if type(each) in _NO_NUMBERS else self._exact_of(each) for each in args]
        return result_of(name, known, node.kwargs, self._dtypes[node])

    # ---- what forward asks

    def of_call(self, func, args, kwargs, frame):
        """(whether it is answered, the answer) of a call of PyTorch's that gives a plain value."""
        if func in _ROWS:
            self._settle_rows(args[0], frame)
        if func is _ITEM or func is torch.Tensor.__bool__:
            with contextlib.suppress(Inexact):
                number = self._exact_in(args[0])
                is_truth = func is not _ITEM or args[0].dtype is torch.bool
                return True, truth_of(number) if is_truth else size_of(number)
        is_condition = func is _ITEM and args[0].dtype is torch.bool
        if not is_condition and func not in _ANSWERED or is_ours(frame.f_globals.get("__name__")):
            return False, None
        try:
            node = _Computed(func, *pytree.tree_map(self._operand, (tuple(args), kwargs)))
        except _Unknown:
            return False, None
        answer = self._ask(node, frame)
        return answer is not None, answer

    def _settle_rows(self, tensor, frame):
        if tensor.dim() and isinstance(size := tensor.shape[0], torch.SymInt) and free_unbacked_symbols(size):
            expression = size.node.shape_env.replace(size.node.expr)
            node = self._formula(expression)
            rows = None if node is None else self._ask(node, frame, expression)
            if rows is not None:
                torch._check(size == rows)

    def of_condition(self, condition, frame):
        """The answer of a SymBool; None of one that depends on anything else."""
        expression = condition.node.shape_env.replace(condition.node.expr)
        if self._read.isdisjoint(expression.free_symbols) or (node := self._formula(expression)) is None:
            return None
        return self._ask(node, frame, expression)

    def patches(self, is_running):
        """(class, name, method) of numbers that Python has to know: `range(n)`, `layers[n]` of a dict."""
        for name in ("__index__", "__int__"):
            yield torch.SymInt, name, self._knowing(getattr(torch.SymInt, name), is_running)
        yield torch.SymInt, "__hash__", self._hashing(torch.SymInt.__hash__, is_running)

    def _knowing(self, know, is_running):
        def knowing(number):
            try:
                return know(number)
            except GuardOnDataDependentSymNode:
                frame = sys._getframe(1)
                if not is_running() or is_ours(frame.f_globals.get("__name__")):
                    raise
                if (value := self._of_number(number, frame)) is None:
                    raise
                return value

        return knowing

    def _hashing(self, hashed, is_running):
        def hashing(number):
            frame = sys._getframe(1)
            name = frame.f_globals.get("__name__")
            # PyTorch takes a number without a hash for one that it does not know, and so does einops a size.
            if not is_running() or is_ours(name) or (name or "").partition(".")[0] == "torch":
                return hashed(number)
            is_number = not self._numbers.isdisjoint(number.node.expr.free_symbols)
            value = self._of_number(number, frame) if is_number else None
            return hashed(number) if value is None else hash(value)

        return hashing

    def own_number(self, number, frame):
        """The value of one that forward makes of numbers of its own, and of sizes, which are those of the call from
        then on; None of another."""
        if not isinstance(number, torch.SymInt):
            return number if type(number) in (int, bool) else None
        if not free_unbacked_symbols(number):
            return int(number)
        node = self._formula(number.node.shape_env.replace(number.node.expr))
        return self._of_number(number, frame) if node is not None and _is_constant(node) else None

    def _of_number(self, number, frame):
        """The value of a SymInt; None where it is not to be had."""
        expression = number.node.shape_env.replace(number.node.expr)
        node = self._formula(expression)
        value = None if node is None else self._ask(node, frame, expression)
        if value is not None:
            torch._check(number == value)
        return value

    def _ask(self, node, frame, expression=None):
        """None where the answer is not to be had."""
        if expression in self._known:
            return self._known[expression]
        answer = self._value(node)
        if answer is not None and not _is_constant(node):
            file = frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
            self._asked.append((node, f"{file}:{frame.f_lineno}", answer))
        if answer is not None and expression is not None:
            self._known[expression] = answer
        return answer

    def _value(self, node):
        """None where it is not to be had: it is drawn, too large a number, or too much to compute in each call."""
        if _steps_of(node, set()) > _MOST_STEPS:
            return None

        def compute():
            state = torch.default_generator.get_state()
            with torch.no_grad():
                value = self._values.value(node)
            if torch.equal(state, torch.default_generator.get_state()):
                return value
            torch.default_generator.set_state(state)
            return None

        try:
            value = elsewhere(compute)
        except Exception:  # the example has other sizes than the call
            return None
        return value if type(value) is bool or type(value) is int and abs(value) <= MOST_TIMES else None


def _writes_its_first(func):
    name = getattr(func, "__name__", "")
    return name in _WRITE or name.endswith("_") and not name.endswith("__")


def _written(func, tensor, *args, **kwargs):
    tensor = tensor.clone()
    func(tensor, *args, **kwargs)
    return tensor


def _part(of, place):
    return of[place] if isinstance(of, tuple | list) else of


def _parts_of(node):
    if isinstance(node, _Formula):
        return list(node.parts.values())
    return pytree.tree_leaves((node.args, node.kwargs)) if isinstance(node, _Computed) else []


def _steps_of(node, seen):
    if not isinstance(node, _NODES) or node in seen:
        return 0
    seen.add(node)
    return 1 + sum(_steps_of(part, seen) for part in _parts_of(node))


def _is_constant(node):
    """Whether each call answers the same: forward made it of numbers of its own."""
    return not isinstance(node, _Argument | _Size) and all(map(_is_constant, _parts_of(node)))
