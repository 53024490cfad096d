"""Checks of data: `if labels.max() >= limit: raise ValueError(…)`, `assert mask.any()`. Forward goes on with one answer
only, which a graph takes for granted and its steps check."""

import ast
import functools
import linecache

import torch


def answer_that_goes_on(frame):
    """What the question that `frame` asks must be answered such that nothing is raised; None of any other question."""
    places, at = _places(frame), frame.f_lasti // 2
    if places is None:
        return None
    answers = _answers(frame.f_code.co_filename)
    # What the question is about stands before it. Python's jump stands for the question too, or for the statement, or
    # (3.11) for the operand before this one: `if limit is not None and not torch.all(…)`.
    return answers.get(places[at - 1], answers.get(places[at]))


def writes_what_a_check_says(frame):
    """Whether `frame` is at the text of `check(found == wanted, f"{found} were found")`. Such a call raises, or does
    nothing: the text is not in what forward computes. transformers checks so that there are as many places for images
    in a text as rows of images."""
    places = _places(frame)
    place = places[frame.f_lasti // 2] if places is not None else (None,)
    if None in place:
        return False
    line, end_line, column, end_column = place
    start, end = (line, column), (end_line, end_column)
    return any(first <= start and end <= last for first, last in _said(frame.f_code.co_filename))


def checked(tensor, answer):
    """`answer`, after a check that the only element of `tensor` is as true as it."""
    number = (tensor.detach() != 0).to(torch.int64).reshape(()).item()
    torch._check(number >= 1 if answer else number <= 0)
    return answer


def _places(frame):
    """Where in its file each instruction of the code stands; None in Python 3.10, which tells lines alone."""
    positions = getattr(frame.f_code, "co_positions", None)
    return None if positions is None else list(positions())


def _nodes(path):
    """All parts of the code in a file; none where that is no Python."""
    try:
        return list(ast.walk(ast.parse("".join(linecache.getlines(path)))))
    except SyntaxError:
        return []


@functools.lru_cache(maxsize=8)
def _said(path):
    """[(start, end)] of the texts, each (line, column)."""
    found = []
    for node in _nodes(path):
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Compare):
            texts = (*call.args[1:], *(keyword.value for keyword in call.keywords))
            found += [
                ((text.lineno, text.col_offset), (text.end_lineno, text.end_col_offset))
                for text in texts
                if isinstance(text, ast.JoinedStr)
            ]
    return found


@functools.lru_cache(maxsize=8)
def _answers(path):
    """{place: answer} of the questions of the checks in a file."""
    found = {}
    for node in _nodes(path):
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
