"""Before their first step processes that train together tell each other what they are. Where they are not alike,
PyTorch would hang, or add up what belongs to different parameters: they end with an error in words."""

import hashlib
import json

import torch

import lowtide
from lowtide.errors import DifferentProcesses

from .meeting import WAIT_S
from .partitions import is_partitioned

_MOST_NAMED = 3  # differences, and processes


def call_roll(meeting, module, frozen_may_differ=False):
    """DifferentProcesses where versions, or parameters' names, dtypes, shapes or requires_grad, are not the same in
    all processes that come. `frozen_may_differ`: requires_grad may."""
    table = _table(module, frozen_may_differ)
    versions = {"lowtide": lowtide.__version__, "PyTorch": str(torch.__version__)}
    mine = {**versions, "parameters": hashlib.sha256(table.encode()).hexdigest()}
    told = {rank: json.loads(text) for rank, text in meeting.exchange(json.dumps(mine), WAIT_S).items()}
    first = min(told)
    differences = [
        f"{processes_text(ranks)} {has} {subject} {found}, {processes_text([first])} {subject} {told[first][subject]}"
        for subject in versions
        for found, ranks in _by_answer(told, subject, told[first][subject]).items()
        for has in ["has" if len(ranks) == 1 else "have"]
    ]
    others = _by_answer(told, "parameters", told[first]["parameters"])
    if others:
        meeting.show("parameters", table)
        whole = json.loads(meeting.look("parameters", first) or "{}")
        for ranks in others.values():
            other = json.loads(meeting.look("parameters", ranks[0]) or "{}")
            differences += _differences(first, whole, ranks, other)
    if differences:
        more = f"; and {len(differences) - _MOST_NAMED} more" if len(differences) > _MOST_NAMED else ""
        raise DifferentProcesses(
            f"processes that train {type(module).__name__} together are not alike: "
            + "; ".join(differences[:_MOST_NAMED])
            + more
        )


def _by_answer(told, subject, expected):
    """{another answer: the processes that give it}."""
    found = {}
    for rank, answers in sorted(told.items()):
        if answers[subject] != expected:
            found.setdefault(answers[subject], []).append(rank)
    return found


def _table(module, frozen_may_differ):
    """JSON: {name: what it is, in words}."""
    found = {}
    for name, parameter in module.named_parameters():
        shape = parameter.ds_shape if is_partitioned(parameter) else parameter.shape
        trained = "" if frozen_may_differ else " and trained" if parameter.requires_grad else " and frozen"
        found[name] = f"{str(parameter.dtype).removeprefix('torch.')}{list(shape)}{trained}"
    return json.dumps(found)


def _differences(first, expected, ranks, found):
    for name in dict.fromkeys([*expected, *found]):
        here, there = found.get(name, "not there"), expected.get(name, "not there")
        if here != there:
            yield f"parameter '{name}' is {here} in {processes_text(ranks)}, {there} in {processes_text([first])}"
    if list(expected) != list(found) and expected.keys() == found.keys():
        yield f"{processes_text(ranks)} and {processes_text([first])} have their parameters in different orders"


def processes_text(ranks):
    """ "process 1", "processes 1, 2, 3 and 4 more"."""
    named = ", ".join(map(str, ranks[:_MOST_NAMED]))
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return f"process{'es' if len(ranks) > 1 else ''} {named}{more}"
