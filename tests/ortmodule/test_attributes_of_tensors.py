"""Attributes that forward gives tensors are there after the call, as in eager."""

import copy

import pytest
import torch
from modules import of, x

from lowtide.ortmodule import ORTModule


def of_output(m, a):
    result = m.l(a)
    result.tag = "made"
    return result


def of_argument(m, a):
    a.tag = "seen"
    return m.l(a)


def of_parameter(m, a):
    m.l.weight.tag = "used"
    return m.l(a)


def another_one(m, a):
    a.tag = a.tag + 1
    return m.l(a)


@pytest.mark.parametrize("function", [of_output, of_argument, of_parameter, another_one])
def test_they_are_there_after_each_call(function, monkeypatch):
    monkeypatch.setenv("LOWTIDE_PIECES", "1")
    module, tags = of(function), []
    wrapped = ORTModule(copy.deepcopy(module))
    for each in (module, wrapped):
        for rows in (2, 2, 3):
            given = x(rows, 4).double()
            if function is another_one:
                given.tag = rows
            result = each(given)
            parameter = next(each.parameters())
            tags.append([getattr(tensor, "tag", None) for tensor in (given, result, parameter)])
    assert tags[:3] == tags[3:]
    assert "forward sets attribute `tag` of a tensor" in wrapped.fallback_reason


def test_those_of_tensors_that_are_gone_are_nobodys():
    def between(m, a):
        hidden = m.l(a)
        hidden.scale = 3.0
        return hidden * hidden.scale

    module = of(between)
    wrapped = ORTModule(copy.deepcopy(module))
    torch.testing.assert_close(wrapped(x(2, 4).double()), module(x(2, 4).double()))
    assert wrapped.fallback_reason is None
