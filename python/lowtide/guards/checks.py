"""Checks of data: `if labels.max() >= limit: raise ValueError(…)`, `assert mask.any()`. Forward goes on with one answer
only, which a graph takes for granted and its steps check."""

import ast
import functools
import linecache

import torch


def answer_that_goes_on(frame):
    """What the question that `frame` asks must be answered such that nothing is raised; None of any other question."""
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is None:  # Python 3.10 does not tell where in a line it is
        return None
    places, at = list(positions()), frame.f_lasti // 2
    answers = _answers(frame.f_code.co_filename)
    # What the question is about stands before it. Python's jump stands for the question too, or for the statement, or
    # (3.11) for the operand before this one: `if limit is not None and not torch.all(…)`.
    return answers.get(places[at - 1], answers.get(places[at]))


def checked(tensor, answer):
    """`answer`, after a check that the only element of `tensor` is as true as it."""
    number = (tensor.detach() != 0).to(torch.int64).reshape(()).item()
    torch._check(number >= 1 if answer else number <= 0)
    return answer


@functools.lru_cache(maxsize=8)
def _answers(path):
    """{place: answer} of the questions of the checks in a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return {}
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            found |= _of_test(node.test, True)
        elif isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
            found |= _of_test(node.test, False)
        elif isinstance(node, ast.If) and node.orelse and isinstance(node.orelse[-1], ast.Raise):
            found |= _of_test(node.test, True)
    return found


def _of_test(test, answer):
    if isinstance(test, ast.BoolOp):
        return {place: goes_on for operand in test.values for place, goes_on in _of_test(operand, answer).items()}
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _of_test(test.operand, not answer)
    return {(test.lineno, test.end_lineno, test.col_offset, test.end_col_offset): answer}
