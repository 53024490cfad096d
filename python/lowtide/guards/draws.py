"""Random numbers that forward draws for its own branches: `if torch.rand([]) < self.layerdrop: continue`.

The host draws them before a graph is chosen, from the generators that forward would take, in its order. A graph is
right for a call where each answer is the one that forward got while it was traced: "torch.rand([]) < 0.1 is False".
"""

import operator
import random
import sys
from dataclasses import dataclass, field

import torch

from .comparisons import Number

COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
FACTORIES = {"rand": torch.rand, "randn": torch.randn, "randint": torch.randint}
FILLS = ("uniform_", "normal_", "bernoulli_", "random_")  # of torch.empty's tensor
# Those that give one number, and how many arguments they have then at most.
OF_MODULES = {
    "numpy": {"random": 0, "random_sample": 0, "rand": 0, "uniform": 2},
    "random": {"random": 0, "uniform": 2, "randint": 2, "randrange": 3},
}
_FEW = 8
_BELOW_ONE = ("rand", "random", "random_sample")  # 0 <= number < 1


@dataclass(frozen=True)
class Question:
    """A comparison of a draw with a number of Python's."""

    op: str  # of COMPARISONS
    number: float | Number
    answer: bool  # while forward was traced
    of_item: bool = False  # asked of draw.item(), which is compared as a Python number and not in the draw's dtype

    def ask(self, value, tensors):
        """`tensors`: of a call, for a number among them."""
        number = self.number.now(tensors) if isinstance(self.number, Number) else self.number
        if self.of_item or not isinstance(value, torch.Tensor):
            value = value.item() if isinstance(value, torch.Tensor) else value
            return getattr(operator, self.op)(value, number)
        return bool(getattr(torch, self.op)(value, number))


@dataclass
class Draw:
    source: str  # "torch", "numpy" or "random"
    name: str  # of FACTORIES, FILLS or OF_MODULES
    args: tuple
    size: tuple = ()  # torch
    dtype: torch.dtype | None = None  # torch
    questions: list = field(default_factory=list)

    def make(self, generators):
        """A one-element tensor, or a number."""
        generator = generators[self.source]
        if self.source != "torch":
            return getattr(generator, self.name)(*self.args)
        if self.name in FILLS:
            blank = torch.empty(self.size, dtype=self.dtype, device="cpu")
            return getattr(blank, self.name)(*self.args, generator=generator)
        factory = FACTORIES[self.name]
        return factory(*self.args, size=self.size, dtype=self.dtype, device="cpu", generator=generator)

    def is_of_few(self):
        """Whether it gives one of so few whole numbers that each may have a graph."""
        if self.name == "randrange":
            return len(range(*self.args)) <= _FEW
        return self.name == "randint" and self.source == "random" and self.args[1] - self.args[0] < _FEW

    def has_few_whole_parts(self):
        """Whether int() of it is one of so few numbers, none below 0, that each may have a graph."""
        low, high = (*self.args, 0, 1)[:2] if len(self.args) != 1 else (self.args[0], 1)
        return (self._is_below_one() or self.name in ("uniform_", "uniform")) and 0 <= low < high <= low + _FEW

    def _is_below_one(self):
        return self.name in _BELOW_ONE or self.name == "uniform_" and self.args in ((), (0,), (0, 1))

    def is_certain(self, question):
        """Whether the answer is the same whatever is drawn."""
        if not self._is_below_one() or isinstance(question.number, Number):
            return False
        if question.op in ("lt", "ge"):
            return question.number <= 0 or question.number >= 1
        return question.number >= 1 and question.op != "eq"

    def words(self, question):
        module = {"numpy": "numpy.random"}.get(self.source, self.source)
        given = [repr(argument) for argument in self.args]
        if self.source == "torch" and self.name in FACTORIES:
            given.append(repr(list(self.size)))
        item = ".item()" if question.of_item else ""
        return f"{module}.{self.name}({', '.join(given)}){item} {COMPARISONS[question.op]} {question.number!r}"


class Draws:
    """What one graph's forward draws on the host, in order."""

    def __init__(self, draws=()):
        self.draws = tuple(draws)
        self._sources = {draw.source for draw in self.draws}
        open_ones = [place for place, draw in enumerate(self.draws) if not all(map(draw.is_certain, draw.questions))]
        self._asked = self.draws[: open_ones[-1] + 1] if open_ones else ()

    def __bool__(self):
        return bool(self.draws)

    def hold(self, tensors):
        """Whether the next draws give the answers of the trace to a call with these tensors, if any. The generators
        stay as they are."""
        if tensors is None and any(isinstance(each.number, Number) for draw in self._asked for each in draw.questions):
            return False
        return self._differ(tensors) is None

    def why(self, tensors):
        """In words, the first answer that is another one."""
        place, draw, question = self._differ(tensors)
        return f"draw {place}: {draw.words(question)} was {question.answer}, is now {not question.answer}"

    def _differ(self, tensors):
        if not self._asked:
            return None
        kept, generators = self.states(), generators_now()
        try:
            for place, draw in enumerate(self._asked):
                value = draw.make(generators)
                for question in draw.questions:
                    if question.ask(value, tensors) != question.answer:
                        return place, draw, question
        finally:
            put_back(kept)
        return None

    def make(self):
        generators = generators_now()
        for draw in self.draws:
            draw.make(generators)

    def states(self, torch_too=False):
        """Of the generators, for `put_back`; `torch_too`: of PyTorch's also where nothing is drawn from it."""
        now = generators_now()
        sources = self._sources | {"torch"} if torch_too else self._sources
        return [(now[source], state_of(now[source])) for source in sources]


def generators_now():
    """The generators of the process."""
    numpy = sys.modules.get("numpy")
    return {
        "torch": torch.default_generator,
        "numpy": numpy and numpy.random.get_state.__self__,
        "random": random.getstate.__self__,
    }


def states_now():
    """Of all generators of the process, for `put_back`."""
    return [(generator, state_of(generator)) for generator in generators_now().values() if generator is not None]


def state_of(generator):
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def put_back(states):
    for generator, state in states:
        set_state(generator, state)


def set_state(generator, state):
    (generator.setstate if isinstance(generator, random.Random) else generator.set_state)(state)
