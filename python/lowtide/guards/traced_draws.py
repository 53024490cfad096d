"""What forward gets for a random number while it is traced: a stand-in that answers comparisons with numbers.

What forward does with it besides puts the draw into the graph, as any other call of PyTorch's. The numbers come from
copies of the generators as they are at the call, so the answers are those that forward would get without a trace.
"""

import operator
import random
import sys
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.utils._pytree as pytree

from lowtide.errors import UnsupportedError

from .code import is_ours
from .comparisons import Number
from .draws import (
    COMPARISONS,
    FACTORIES,
    FILLS,
    OF_MODULES,
    Draw,
    Draws,
    Question,
    generators_now,
    set_state,
    state_of,
)

_BOTH = "forward branches on a random number and computes with it, too"
_FREEZES = "forward changes {}'s random numbers, from which it draws, which a graph would freeze"
MAKERS = {torch.empty: None, **{factory: name for name, factory in FACTORIES.items()}}
_FILLERS = {getattr(torch.Tensor, name): name for name in FILLS}
_COMPARISONS = {
    function: name
    for name in COMPARISONS
    for function in (getattr(torch, name), getattr(torch.Tensor, name), getattr(torch.Tensor, f"__{name}__"))
}
# Of a tensor that is there, without a question to its numbers.
_METADATA = frozenset(
    (
        *(getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim")),
        *(torch.Tensor.dim, torch.Tensor.size, torch.Tensor.numel, torch.Tensor.is_floating_point),
    )
)


class TracedDraws:
    """Of one run of forward."""

    def __init__(self, comparisons):
        self._comparisons = comparisons
        self._drawn, self._in_graph = [], set()  # Draws, and ids of those that the graph has
        self._made = False  # stand-ins
        self._generators = None  # copies
        self._enters_graph = False

    def __bool__(self):
        return self._made

    def untraced(self):
        """The Draws that are not in the graph."""
        return Draws(draw for draw in self._drawn if id(draw) not in self._in_graph)

    def tensor(self, func, args, kwargs):
        """A stand-in for what a factory of PyTorch's gives, or None where it makes more than one number."""
        found = None if self._enters_graph else _read_factory(MAKERS[func], args, kwargs)
        if found is None:
            return None
        self._made = True
        args, size, dtype = found
        if func is torch.empty:
            return elsewhere(lambda: _stand_in(torch.empty(size, dtype=dtype), _Blank(self, size, dtype)))
        return self._make(Draw("torch", MAKERS[func], args, size, dtype))

    def fill(self, blank, name, args):
        """torch.empty([]).uniform_(…)."""
        draw = Draw("torch", name, args, blank._lowtide.size, blank._lowtide.dtype)
        blank._lowtide = self._record(draw)
        return blank

    def number(self, source, name, args):
        """A stand-in for a number of NumPy's or Python's."""
        return DrawnNumber(self._record(Draw(source, name, args)))

    def in_graph(self, make, draw=None):
        """make(), which draws or makes room for it."""
        self._enters_graph = True
        self._in_graph.add(id(draw))
        try:
            return make()
        finally:
            self._enters_graph = False

    def _make(self, draw):
        record = self._record(draw)
        return elsewhere(lambda: _stand_in(record.value.clone(), record))

    def _record(self, draw):
        if self._generators is None:
            self._generators = elsewhere(_copies)
        generators = self._generators
        record = _Record(self, draw, elsewhere(lambda: draw.make(generators)), self._comparisons)
        if draw.source == "torch":
            draw.dtype = record.value.dtype
        self._drawn.append(draw)
        return record


class _Record:
    """Of one draw."""

    def __init__(self, draws, draw, value, comparisons):
        self._draws = draws
        self.draw, self.value, self.traced = draw, value, None
        self._comparisons = comparisons

    def compares_with(self, number):
        """The number, or for a symbolic one what it is computed from; None for what is none of both."""
        if isinstance(number, torch.SymInt | torch.SymFloat):
            return self._comparisons.number(number)
        return number if type(number) in (int, float, bool) else None

    def ask(self, op, number, of_item=False):
        if self.traced is not None:
            raise UnsupportedError(_BOTH)
        known = number.value if isinstance(number, Number) else number
        value, question = self.value, Question(op, known, False, of_item)
        answer = bool(elsewhere(lambda: question.ask(value, ())))
        self.draw.questions.append(Question(op, number, answer, of_item))
        return answer

    def ask_for_value(self):
        """Of one of few whole numbers: each has a graph of its own."""
        if self.draw.source == "torch" or type(self.value) is not int or not self.draw.is_of_few():
            return None
        self.ask("eq", self.value)
        return self.value

    def ask_for_whole(self):
        """int() of it, where there are few."""
        value = self.value.item() if isinstance(self.value, torch.Tensor) else self.value
        if self.traced is not None or type(value) is not float or not self.draw.has_few_whole_parts():
            return None
        whole, of_item = int(value), self.draw.source == "torch"
        self.ask("ge", whole, of_item)
        self.ask("lt", whole + 1, of_item)
        return whole

    def in_graph(self):
        if self.draw.source != "torch":
            raise UnsupportedError(_FREEZES.format("NumPy" if self.draw.source == "numpy" else "Python"))
        if self.draw.questions:
            raise UnsupportedError(_BOTH)
        if self.traced is None:
            self.traced = self._draws.in_graph(self._traced, self.draw)
        return self.traced

    def _traced(self):
        draw = self.draw
        if draw.name in FILLS:
            return getattr(torch.empty(draw.size, dtype=draw.dtype), draw.name)(*draw.args)
        return FACTORIES[draw.name](*draw.args, size=draw.size, dtype=draw.dtype)


class _Blank:
    """torch.empty's tensor before it is filled."""

    def __init__(self, draws, size, dtype):
        self._draws, self.size, self.dtype, self.traced = draws, size, dtype, None

    def in_graph(self):
        if self.traced is None:
            self.traced = self._draws.in_graph(lambda: torch.empty(self.size, dtype=self.dtype))
        return self.traced


class _Comparison:
    """draw < number, as a tensor."""

    def __init__(self, record, op, number):
        self.record, self.op, self.number = record, op, number

    def ask(self):
        return self.record.ask(self.op, self.record.compares_with(self.number))

    def in_graph(self):
        return getattr(torch, self.op)(self.record.in_graph(), self.number)


class DrawnTensor(torch.Tensor):
    """A tensor of the right type, whose numbers nobody sees."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return called(func, args, kwargs or {})


class DrawnNumber:
    """A float, or an int."""

    def __init__(self, record):
        self._lowtide = record

    __hash__ = None


def _compare(name):
    def compare(self, other):
        if (number := self._lowtide.compares_with(other)) is None:
            return NotImplemented
        return self._lowtide.ask(name, number, self._lowtide.draw.source == "torch")

    return compare


def _value(drawn):
    value = drawn._lowtide.ask_for_value()
    return drawn._lowtide.in_graph().item() if value is None else value


def _whole(drawn):
    value = drawn._lowtide.ask_for_whole()
    return _compute("__int__")(drawn) if value is None else value


def _compute(name):
    def compute(self, *others):
        return getattr(_value(self), name)(*others)

    return compute


def _combine(function, is_reflected):
    """Of two: the other one may be what alone knows how, a tensor for one."""

    def combine(self, other):
        return function(other, _value(self)) if is_reflected else function(_value(self), other)

    return combine


for _name in COMPARISONS:
    setattr(DrawnNumber, f"__{_name}__", _compare(_name))
for _name in "add sub mul truediv floordiv mod pow".split():
    setattr(DrawnNumber, f"__{_name}__", _combine(getattr(operator, _name), False))
    setattr(DrawnNumber, f"__r{_name}__", _combine(getattr(operator, _name), True))
for _name in "neg pos abs bool float int index round trunc floor ceil format str repr".split():
    setattr(DrawnNumber, f"__{_name}__", _compute(f"__{_name}__"))

DrawnNumber.__int__ = _whole


def drawing_functions(module, source, draws_now):
    """{name: function} for those of Python's or NumPy's module that draw a number. `draws_now()`: the TracedDraws where
    forward is running, else None."""
    found = {
        name: _drawing(source, name, most, getattr(module, name), draws_now)
        for name, most in OF_MODULES[source].items()
    }
    if source == "random":
        found["choice"] = _choosing(module.choice, draws_now)
    return found


def _choosing(choice, draws_now):
    def choose(seq):
        if draws_now() is None or is_ours(sys._getframe(1).f_globals.get("__name__")) or not len(seq):
            return choice(seq)
        return seq[draws_now().number("random", "randrange", (len(seq),))]

    return choose


def _drawing(source, name, most, function, draws_now):
    def draw(*args, **kwargs):
        one = not kwargs and len(args) <= most and all(type(argument) in (int, float) for argument in args)
        draws = draws_now() if one and not is_ours(sys._getframe(1).f_globals.get("__name__")) else None
        return function(*args, **kwargs) if draws is None else draws.number(source, name, args)

    return draw


def has_drawn(args, kwargs):
    return any(isinstance(leaf, DrawnTensor) for leaf in pytree.tree_leaves((args, kwargs)))


def called(func, args, kwargs, draws=None):
    """What a call of PyTorch's gives that has a DrawnTensor among its arguments."""
    first = args[0] if args and isinstance(args[0], DrawnTensor) else None
    if first is not None and not kwargs:
        held, others = first._lowtide, args[1:]
        if isinstance(held, _Record):
            if func in _COMPARISONS and len(others) == 1 and held.compares_with(others[0]) is not None:
                compared = _Comparison(held, _COMPARISONS[func], others[0])
                return elsewhere(lambda: _stand_in(torch.empty(held.draw.size, dtype=torch.bool), compared))
            if func is torch.Tensor.item:
                return DrawnNumber(held)
        elif isinstance(held, _Comparison) and func in (torch.Tensor.__bool__, torch.Tensor.item):
            return held.ask()
        elif isinstance(held, _Blank) and func in _FILLERS and draws is not None and _is_plain(others):
            if held.traced is None:
                return draws.fill(first, _FILLERS[func], others)
    if func in _METADATA:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)
    args, kwargs = in_graph((args, kwargs))
    return func(*args, **kwargs)


def in_graph(tree):
    """With the graph's own tensors in the places of stand-ins."""
    return pytree.tree_map_only(DrawnTensor, lambda drawn: drawn._lowtide.in_graph(), tree)


def _stand_in(tensor, held):
    drawn = tensor.as_subclass(DrawnTensor)
    drawn._lowtide = held
    return drawn


def _read_factory(name, args, kwargs):
    """(args but for the size, size, dtype) of a call that makes one number of constants, or None."""
    options = dict(kwargs)
    dtype, device = options.pop("dtype", None), options.pop("device", None)
    if device is not None and torch.device(device).type != "cpu":
        return None
    size = options.pop("size", None)
    if name == "randint":
        bounds = [*args, *(options.pop(bound) for bound in ("low", "high") if bound in options)]
        if size is None and bounds:
            size = bounds.pop()
        if not bounds or not _is_plain(bounds):
            return None
    else:
        bounds = ()
        if size is None:
            size = args[0] if len(args) == 1 and isinstance(args[0], tuple | list) else args
    if options or not isinstance(size, tuple | list) or any(type(each) is not int or each != 1 for each in size):
        return None
    return tuple(bounds), tuple(size), dtype


def _is_plain(arguments):
    return all(type(argument) in (int, float, bool) for argument in arguments)


def _copies():
    made = {"torch": torch.Generator(), "random": random.Random()}
    if (numpy := sys.modules.get("numpy")) is not None:
        made["numpy"] = numpy.random.RandomState()
    now = generators_now()
    for source, generator in made.items():
        set_state(generator, state_of(now[source]))
    return made


def elsewhere(function):
    """function() in another thread, where nothing is traced."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function).result()
