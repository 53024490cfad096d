"""The random numbers that a stored graph's forward draws on the host. What a file names is one of the known draws."""

from lowtide.guards.comparisons import Number
from lowtide.guards.draws import COMPARISONS, FACTORIES, FILLS, OF_MODULES, Draw, Draws, Question
from lowtide.guards.values import DTYPES

from .questions import number_from_json, number_to_json
from .trees import DTYPE_OF

_NAMES = {"torch": (*FACTORIES, *FILLS), **OF_MODULES}
_MOST_DIMS = 64


def draws_to_json(draws):
    return [
        [
            [draw.source, draw.name, [_number_to_json(argument) for argument in draw.args]],
            [list(draw.size), draw.dtype and DTYPES[draw.dtype]],
            [[each.op, _number_to_json(each.number), each.answer, each.of_item] for each in draw.questions],
        ]
        for draw in draws.draws
    ]


def draws_from_json(told, call):
    return Draws(_draw_from_json(*parts, call) for parts in told)


def _draw_from_json(drawn, kind, questions, call):
    (source, name, args), (size, dtype) = drawn, kind
    if name not in _NAMES[source] or (source == "torch") != (dtype in DTYPE_OF):
        raise ValueError(f"a draw of {source}'s {name}")
    if len(size) > _MOST_DIMS or any(type(each) is not int or each != 1 for each in size):
        raise ValueError(f"a draw of the size {size}")
    draw = Draw(source, name, tuple(map(_number_from_json, args)), tuple(size), dtype and DTYPE_OF[dtype])
    for op, number, answer, of_item in questions:
        if op not in COMPARISONS or type(answer) is not bool or type(of_item) is not bool:
            raise ValueError(f"a question about {source}'s {name}")
        number = number_from_json(number, call) if type(number) is list else _number_from_json(number)
        draw.questions.append(Question(op, number, answer, of_item))
    return draw


def _number_to_json(number):
    if isinstance(number, Number):
        return number_to_json(number)
    return number if type(number) in (int, bool) else repr(number)


def _number_from_json(told):
    if type(told) in (int, bool):
        return told
    if type(told) is not str:
        raise ValueError(f"a number {told!r}")
    return float(told)
