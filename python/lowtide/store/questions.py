"""What a stored graph's forward asked of its tensors and numbers. They only read: what a file names is found among the
call's tensors."""

from lowtide.guards.answers import Answered
from lowtide.guards.comparisons import FUNCTIONS, OPERATORS, Comparison, Number
from lowtide.guards.questions import Question, named_tensors

from .trees import NotStorable


def questions_to_json(questions):
    return [_to_json(each) for each in questions]


def _to_json(question):
    if isinstance(question, Answered):
        raise NotStorable("what forward computes of its arguments and branches on")
    if isinstance(question, Comparison):
        return ["comparison", _recipe_to_json(question.recipe), question.words, question.answer]
    return [question.kind, question.place, question.words, question.name, question.answer]


def _recipe_to_json(recipe):
    if type(recipe) is tuple:
        return [recipe[0], *map(_recipe_to_json, recipe[1:])]
    return repr(recipe) if type(recipe) is float else recipe


def questions_from_json(told, call, module):
    return tuple(_from_json(*parts, call=call, module=module) for parts in told)


def _from_json(kind, place, words, *rest, call, module):
    if kind == "comparison":
        (answer,) = rest
        if type(answer) is not bool:
            raise ValueError(f"the answer {answer} to a comparison")
        return Comparison(_recipe_from_json(place, call.number_indices()), words, answer)
    question = Question(kind, place, words, *rest)
    if not _is_known(question, call, module):
        raise ValueError(f"a question whether {question.words} {question.name}")
    return question


def number_to_json(number):
    return [_recipe_to_json(number.recipe), number.words]


def number_from_json(told, call):
    recipe, words = told
    return Number(_recipe_from_json(recipe, call.number_indices()), words, None)


def _recipe_from_json(told, numbers):
    if type(told) is not list:
        return float(told) if type(told) is str else told
    name, *operands = told
    if name == "number" and len(operands) == 1 and operands[0] in numbers:
        return name, operands[0]
    if name not in OPERATORS or len(operands) != (1 if name in ("neg", "abs", *FUNCTIONS) else 2):
        raise ValueError(f"a comparison by {name}")
    return name, *(_recipe_from_json(operand, numbers) for operand in operands)


def _is_known(question, call, module):
    if type(question.name) is not str:
        return False
    if question.kind == "tensor":
        return question.place in named_tensors(module)
    return type(question.place) is int and 0 <= question.place < len(call.tensors)
