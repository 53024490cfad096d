"""Python's own functions while forward is traced: len(), max(), min() and isinstance()."""

import builtins
import sys

import torch

from lowtide import _lowtide

from .code import is_ours
from .collected import Growing
from .lengths import with_free_sizes


def builtin_functions(comparisons):
    """(builtins, name, what stands there)."""
    yield builtins, "len", with_free_sizes(len)
    yield builtins, "max", _of_reals(max, torch.gt, comparisons)
    yield builtins, "min", _of_reals(min, torch.lt, comparisons)
    yield builtins, "isinstance", _lowtide.isinstance_with(_is_of_plain, *_PLAIN)


_PLAIN = {torch.SymInt: 2, torch.SymFloat: 2.0, torch.SymBool: True, Growing: []}


def _is_of_plain(thing, classes):
    """To users' code a size is an int, as it is in eager, and what stands for a list is one."""
    name = sys._getframe(1).f_globals.get("__name__")
    return not is_ours(name) and isinstance(_PLAIN[type(thing)], classes)


def _of_reals(function, is_better, comparisons):
    """`max(best, loss.item())`: of a real number that forward reads the choice is the graph's. It asks as Python does,
    whether the second is better, so that it chooses the same where one is nan."""

    def is_read(number):
        return isinstance(number, torch.SymFloat) and comparisons.number(number) is None

    def _python_min_max(*args, **kwargs):
        if kwargs or len(args) != 2 or not any(map(is_read, args)):
            return function(*args, **kwargs)
        if not all(type(each) in (int, float, torch.SymFloat) for each in args):
            return function(*args)
        first, second = (torch.scalar_tensor(each, dtype=torch.float64) for each in args)
        return torch.where(is_better(second, first), second, first).item()

    return _python_min_max
