"""Conditions on sizes that forward branches on. The exporter answers those that tell an empty tensor from others
without a word, as if no size were 0 or 1: noted here, they become guards. Those that tell a count of 0 or 1 from data
from others are answered as of others, and each step checks them: `if query.shape[2] > 1`."""

import functools
import sys

import sympy
import torch
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, free_unbacked_symbols
from torch.utils._sympy.functions import Max

from .checks import answer_that_goes_on
from .code import is_ours

_LARGE = (2, 3, 2**40)  # counts that are as good as all others
_VERY_LARGE = tuple(factor * 2**30 * 3**4 * 5**2 * 7 * 11 * 13 for factor in (1, 2, 17))
# Of a number, and what the exporter and builtin_functions.py put in the places of min() and max().
_BETWEEN = ("__bool__", "_is_not_zero", "_as_index", "_tensor_min_max", "_python_min_max")
_ASK_FOR_USERS = ("torch.nn.modules.", "torch.nn.functional")
_ASK_FOR_USERS += ("lowtide.guards.numbers_of_sizes", "lowtide.guards.plain_numbers")


def answering(note, assumes_large, comparisons, given):
    """The patches that answer conditions; note(condition, answer) hears what users' code and PyTorch's layers ask.
    `assumes_large`: whether counts are taken for neither 0 nor 1; `comparisons`: of numbers among the inputs; `given`:
    whose tensors' numbers answer what is computed of them alone."""
    yield torch.SymBool, "__bool__", _answering(note, assumes_large, comparisons, given)
    if assumes_large:
        yield SymNode, "guard_bool", _answering_cpp(SymNode.guard_bool)


def _answering_cpp(ask):
    """In the place of SymNode.guard_bool, which PyTorch's ops in C++ call: its attention compares the rows of a mask
    and of a query."""

    def answered(node, file, line):
        try:
            return ask(node, file, line)
        except GuardOnDataDependentSymNode:
            if sys._getframe(1).f_globals.get("__name__") != "torch._ops":  # but SymBool.__bool__ or Tensor.__bool__
                raise
            condition = torch.SymBool(node)
            _, usual = _of_large_counts(condition)
            if usual is None:
                raise
            return _checked(condition, usual)

    return answered


def _answering(note, assumes_large, comparisons, given):
    ask = torch.SymBool.__bool__

    def answered(condition):
        frame = sys._getframe(1)
        while frame.f_code.co_name in _BETWEEN:
            frame = frame.f_back
        name = frame.f_globals.get("__name__") or ""
        is_asked_by_users = not is_ours(name) or name.startswith(_ASK_FOR_USERS)
        if is_asked_by_users and (answer := comparisons.answer(condition)) is not None:
            return answer
        if _is_of_counts(condition) and (goes_on := answer_that_goes_on(frame)) is not None:
            return _checked(condition, goes_on)
        try:
            found = ask(condition)
        except GuardOnDataDependentSymNode:
            count, usual = _of_large_counts(condition) if assumes_large else (None, None)
            if usual is None and assumes_large:
                multiple, usual = _of_multiples(condition)
                if usual is not None:
                    torch._check(condition.node.shape_env.create_symintnode(multiple, hint=None) != 0)
                    return usual
                usual = None if is_asked_by_users else _of_very_large_count(condition)
            if usual is None:
                answer = given.answers.of_condition(condition, frame) if is_asked_by_users else None
                if answer is None:
                    raise
                return answer
            is_quotient = count is not None and not count.is_Symbol
            if count is not None and (is_quotient or condition.node.expr.subs(count, 0) != usual):
                # Which the exporter does not conclude of a quotient: PyTorch's attention asks for it.
                torch._check(condition.node.shape_env.create_symintnode(count, hint=None) != 0)
            return _checked(condition, usual)
        if is_asked_by_users:
            note(condition.node.expr, found)
        return found

    return answered


def taking_conditions(function, note):
    """In the place of a function of PyTorch's that takes no condition on sizes for a flag: it gets the answer, as if
    forward had asked."""

    def answered(value):
        if not isinstance(value, torch.SymBool):
            return value
        answer = bool(value)
        note(value.node.expr, answer)
        return answer

    @functools.wraps(function)
    def taking(*args, **kwargs):
        return function(*map(answered, args), **{name: answered(value) for name, value in kwargs.items()})

    return taking


def _checked(condition, answer):
    torch._check(condition if answer else torch.sym_not(condition))
    return answer


def _of_large_counts(condition):
    """(count, what a comparison of it with a number is for all but 0 and 1); None twice of any other condition."""
    relation, ranges = condition.node.expr, condition.node.shape_env.var_to_range
    if not isinstance(relation, sympy.core.relational.Relational) or not _is_of_counts(condition):
        return None, None
    if any(ranges[symbol].lower < 0 for symbol in relation.free_symbols):
        return None, None
    counts = [side for side in relation.args if side.free_symbols]
    if len(counts) != 1:
        return None, None
    answers = {relation.subs(counts[0], large) for large in _LARGE}
    return (counts[0], bool(answers.pop())) if len(answers) == 1 else (None, None)


def _of_multiples(condition):
    """(count, how multiples of it compare where it is not 0), as PyTorch compares strides, in which a size of 0 counts
    as 1; None twice of any other condition."""
    found = multiples(condition.node.expr) if _is_of_counts(condition) else None
    return (None, None) if found is None else (found[0], bool(condition.node.expr.func(found[1], 0)))


def multiples(relation):
    """(count, factor, number) of a comparison of multiples of one count, one of them of Max(1, count): the difference
    of its sides is factor times the count, and that number where it is 0. None of any other."""
    if not isinstance(relation, sympy.core.relational.Relational):
        return None
    sizes = [each.args for each in relation.atoms(Max) if len(each.args) == 2 and 1 in each.args]
    counts = {next(size for size in pair if size != 1) for pair in sizes}
    if len(counts) != 1:
        return None
    count, one = counts.pop(), sympy.Dummy(integer=True, positive=True)
    difference = relation.lhs - relation.rhs
    multiple = sympy.expand(difference.subs(Max(1, count), one).subs(count, one))
    factor = multiple.coeff(one, 1)
    if not factor.is_number or sympy.expand(multiple - factor * one) != 0:
        return None
    return count, factor, difference.subs(Max(1, count), 1).subs(count, 0)


def _of_very_large_count(condition):
    """What a condition on one count is where that is very large and a multiple of what it is divided by; or None."""
    counts, environment = free_unbacked_symbols(condition), condition.node.shape_env
    if len(counts) != 1 or not _is_of_counts(condition):
        return None
    example = condition.node.expr.xreplace(environment.backed_var_to_val)
    answers = {example.subs(*counts, large) for large in _VERY_LARGE}
    answer = answers.pop()
    return bool(answer) if not answers and answer in (sympy.true, sympy.false) else None


def _is_of_counts(condition):
    """Whether it depends on whole numbers from data, and on no others: steps check no comparison of real ones."""
    return free_unbacked_symbols(condition) and all(symbol.is_integer for symbol in condition.node.expr.free_symbols)
