"""What a stored graph's forward asked of its tensors. They only read: what a file names is found among the call's
tensors."""

from lowtide.guards.questions import Question, named_tensors


def questions_to_json(questions):
    return [[each.kind, each.place, each.words, each.name, each.answer] for each in questions]


def questions_from_json(told, call, module):
    questions = tuple(Question(*parts) for parts in told)
    if unknown := [each for each in questions if not _is_known(each, call, module)]:
        raise ValueError(f"a question whether {unknown[0].words} {unknown[0].name}")
    return questions


def _is_known(question, call, module):
    if type(question.name) is not str:
        return False
    if question.kind == "tensor":
        return question.place in named_tensors(module)
    return type(question.place) is int and 0 <= question.place < len(call.tensors)
