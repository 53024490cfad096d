"""Comparisons of numbers that are inputs of a graph: `if epoch >= 3`. The call's own numbers answer them while forward
is traced, and a graph is right for calls whose numbers answer the same.

What forward computes from such a number is written down as it goes, so that a later call computes the same by Python's
own operators, to the bit.
"""

import math
import operator
import sys
from dataclasses import dataclass, field

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true

from lowtide.errors import UnsupportedError

from .checks import writes_what_a_check_says
from .code import is_ours
from .whole_divisions import WholeDivisions

FUNCTIONS = ("exp", "sqrt", "log", "log2", "log10", "sin", "cos", "tanh")  # of Python's math and of torch
OPERATORS = {
    **{name: getattr(operator, name) for name in "add sub mul truediv floordiv mod pow lt le gt ge eq ne neg".split()},
    "abs": abs,
    **{name: getattr(math, name) for name in FUNCTIONS},
}
# Where they have a value: elsewhere they raise, and no graph does.
_DEFINED = {
    "exp": lambda x: x < 709,
    "sqrt": lambda x: x >= 0,
    **dict.fromkeys(("log", "log2", "log10"), lambda x: x > 0),
}
_SIGNS = dict(zip("add sub mul truediv floordiv mod pow lt le gt ge eq ne".split(),
                  "+ - * / // % ** < <= > >= == !=".split(), strict=True))  # fmt: skip
_REFLECTED = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_PLAIN = (int, float, bool)
_PLAIN_OF = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


@dataclass(frozen=True)
class Comparison:
    """A Question of numbers. `recipe`: a tree of (name of OPERATORS, operands), of ("number", place among the call's
    tensors) and of plain numbers."""

    recipe: tuple
    words: str
    answer: bool

    def ask(self, tensors, _):
        try:
            return bool(computed(self.recipe, tensors))
        except ArithmeticError as error:  # which forward raises as well
            return type(error).__name__

    def change(self, tensors, module):
        return f"`{self.words}` was {self.answer}, is now {self.ask(tensors, module)}"


@dataclass(frozen=True)
class Number:
    """What forward computes of numbers among the inputs; `value`: while it was traced."""

    recipe: tuple
    words: str
    value: int | float = field(compare=False)

    def now(self, tensors):
        return computed(self.recipe, tensors)

    def __repr__(self):
        return self.words


def computed(recipe, tensors):
    """By Python's operators, of the numbers in a call's tensors."""
    if type(recipe) is not tuple:
        return recipe
    name, *operands = recipe
    if name == "number":
        return tensors[operands[0]].item()
    return OPERATORS[name](*(computed(operand, tensors) for operand in operands))


class Comparisons:
    """Of one trace."""

    def __init__(self, is_running, plain_numbers):
        self._is_running, self._plain_numbers, self.divisions = is_running, plain_numbers, WholeDivisions()
        self.begin({}, (), ())

    def begin(self, numbers, tensors, names):
        """`numbers`: {place among the call's `tensors`: what stands for the number in it}; `names` of the tensors."""
        self._recipes = {id(number): (number, ("number", place)) for place, number in numbers.items()}
        self._tensors, self._names = tensors, names
        self.asked = {}  # recipe → Comparison
        self._written = None  # what into a text

    def end(self):
        self._recipes, self._tensors = {}, ()
        self.divisions.clear()

    def patches(self):
        """(class, name, method that writes down what it computes)."""
        for cls in (torch.SymInt, torch.SymFloat):
            for name in (name for name in OPERATORS if name not in FUNCTIONS):
                yield cls, f"__{name}__", self._noting(getattr(cls, f"__{name}__"), name)
            for name in _REFLECTED:
                yield cls, f"__r{name}__", self._noting(getattr(cls, f"__r{name}__"), name, is_reflected=True)
        for cls in _PLAIN_OF:
            for name in ("__str__", "__repr__", "__format__"):
                yield cls, name, self._noting_text(getattr(cls, name), name)
        yield torch.SymFloat, "__bool__", _is_not_zero
        yield torch.SymBool, "__index__", _as_index
        yield from self.divisions.patches()
        for name in FUNCTIONS:
            yield math, name, self._as_tensors(getattr(math, name), name)

    def _noting(self, compute, name, is_reflected=False):
        def noting(number, *others):
            result = compute(number, *others)
            if not (is_reflected and name == "truediv") and self._is_running():
                self.divisions.note(name, number, others, result)
            if self._recipes and isinstance(result, torch.SymInt | torch.SymFloat | torch.SymBool):
                operands = (*others, number) if is_reflected else (number, *others)
                recipes = [self._recipe(operand) for operand in operands]
                if None not in recipes and any(type(recipe) is tuple for recipe in recipes):
                    self._recipes[id(result)] = result, (name, *recipes)
            return result

        return noting

    def keep_within_64_bits(self, number):
        """Of a whole number that the graph returns: Python's have no bound."""
        recipe = self._recipe(number)
        if recipe is not None and _multiplies(recipe) and not self._ask(("lt", ("abs", recipe), 2**62)):
            raise UnsupportedError("forward computes a whole number of more than 64 bits")

    def _noting_text(self, write, name):
        """A size that users' code makes a text of (a key of a ModuleDict, a log) is one that the graph is made for."""

        def text(number, *form):
            frame = sys._getframe(1)
            if not self._is_running() or is_ours(frame.f_globals.get("__name__")) or writes_what_a_check_says(frame):
                return write(number, *form)
            if id(number) in self._recipes:
                self._written = "a number that changes"  # an error might end in the code that writes a log
                plain = computed(self._recipe(number), self._tensors)
            else:
                plain = _PLAIN_OF[type(number)](number)
            return getattr(plain, name)(*form)

        return text

    def note_text(self, tensor, text, frame):
        """Of a tensor, which may say what stands for it in a trace: of known numbers it does not."""
        if type(tensor) is not torch.Tensor and f"{type(tensor).__name__}(" in text:
            if not writes_what_a_check_says(frame):
                self._written = "a tensor"

    def refuse_texts(self):
        """At the end of forward."""
        if self._written is not None:
            raise UnsupportedError(f"forward makes a text of {self._written}")

    def number(self, symbolic):
        """A Number, or None for one that depends on anything else than the numbers among the inputs."""
        recipe = self._recipe(symbolic)
        if recipe is None or not self._is_running():
            return None
        return Number(recipe, _words(recipe, self._names), computed(recipe, self._tensors))

    def _recipe(self, operand):
        if id(operand) in self._recipes:
            return self._recipes[id(operand)][1]
        return operand if type(operand) in _PLAIN else None

    def _as_tensors(self, function, name):
        """A function of Python's math: of such a number, or of one from data, PyTorch's of a 0-d tensor."""

        def of_number(number, *others):
            if others or not isinstance(number, torch.SymInt | torch.SymFloat) or not self._is_running():
                return function(number, *others)
            recipe = self._recipe(number) if self._recipes else None
            if type(recipe) is not tuple:
                is_read = free_unbacked_symbols(number) and _is_defined(name, number)
                is_taken = is_read or self._plain_numbers.of_math(number)
                return _of_tensor(name, number) if is_taken else function(number)
            if name in _DEFINED and not self.answer(_DEFINED[name](number)):
                return function(number)
            result = _of_tensor(name, number)
            self._recipes[id(result)] = result, (name, recipe)
            return result

        return of_number

    def answer(self, condition):
        """Of a SymBool; None of one that depends on anything else."""
        recipe = self._recipe(condition) if self._recipes and self._is_running() else None
        return None if recipe is None else self._ask(recipe)

    def _ask(self, recipe):
        answer = bool(computed(recipe, self._tensors))
        self.asked[recipe] = Comparison(recipe, _words(recipe, self._names), answer)
        return answer


def _of_tensor(name, number):
    return getattr(torch, name)(torch.scalar_tensor(number, dtype=torch.float64)).item()


def _is_defined(name, number):
    """Whether a number from data has a value; of a whole one each step checks it."""
    if name not in _DEFINED:
        return True
    condition = _DEFINED[name](number)
    if isinstance(number, torch.SymInt):
        torch._check(condition)
        return True
    return statically_known_true(condition)


def _multiplies(recipe):
    return type(recipe) is tuple and (recipe[0] in ("mul", "pow") or any(map(_multiplies, recipe[1:])))


def _is_not_zero(number):  # as of a SymInt
    return bool(number != 0)


def _as_index(condition):  # `[few, many][n > 8]`
    return int(bool(condition))


def _words(recipe, names):
    if type(recipe) is not tuple:
        return repr(recipe)
    name, *operands = recipe
    if name == "number":
        return names[operands[0]]
    parts = [f"({_words(each, names)})" if _is_sum(each) else _words(each, names) for each in operands]
    return f" {_SIGNS[name]} ".join(parts) if name in _SIGNS else f"{name}({parts[0]})"


def _is_sum(recipe):
    return type(recipe) is tuple and recipe[0] in _SIGNS
