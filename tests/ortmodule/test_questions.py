"""What forward asks of the tensors that it is given: the answers were those of the trace's own tensors, or of the first
call's."""

import copy

import pytest
import torch
from modules import Of, x

from lowtide.ortmodule import ORTModule

pytestmark = [
    pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.usefixtures("with_pieces"),
]


def factor(yes):
    return 2.0 if yes else 3.0


QUESTIONS = {
    "base": lambda m, a: factor(a.reshape(-1)._base is a),
    "no base": lambda m, a: factor(a._base is None),
    "contiguous": lambda m, a: factor(a.is_contiguous()),
    "leaf": lambda m, a: factor(a.is_leaf),
    "grad_fn": lambda m, a: factor(a.grad_fn is None),
    "retains_grad": lambda m, a: factor(a.retains_grad),
    "grad": lambda m, a: factor(a.grad is None),
    "offset": lambda m, a: 1.0 + a.storage_offset(),
    "shared": lambda m, a: factor(a.is_shared()),
    "memory": lambda m, a: 1.0 + a.untyped_storage().nbytes() / 100,
    "stride": lambda m, a: 1.0 + a.stride(0),
    "attribute": lambda m, a: getattr(a, "factor", 1.0),
    "version": lambda m, a: 1.0 + a._version,
    "parameter": lambda m, a: factor(isinstance(a, torch.nn.Parameter)),
    "gradient of a parameter": lambda m, a: 1.0 if m.l.weight.grad is None else m.l.weight.grad.sum().tanh(),
}


def with_attribute(argument, value):
    argument.factor = value
    return argument


def arguments():
    """Of calls one after another; made anew, since some are changed by a call."""
    yield x()
    yield x(grad=True)
    yield x(4, 4)[1:]
    yield x(grad=True) * 1
    yield x(4, 3).t()
    yield x(3, 8)[:, :4]
    yield x().share_memory_()
    yield x().add_(1)
    with_gradient = x(grad=True)
    with_gradient.grad = torch.ones(3, 4)
    yield with_gradient
    yield torch.nn.Parameter(x())
    retaining = x(grad=True) * 1
    retaining.retain_grad()
    yield retaining
    yield with_attribute(x(), 2.0)
    yield with_attribute(x(), 3)
    yield with_attribute(x(), torch.ones(4))
    yield x()


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_calls_own_tensors_answer(name):
    module = Of(lambda m, a: m.l(a) * QUESTIONS[name](m, a))
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    for ours, theirs in zip(arguments(), arguments(), strict=True):
        for each, inner, given in ((eager, eager, theirs), (wrapped, module, ours)):
            inner.found = each(given)
            inner.found.sum().backward()
        torch.testing.assert_close(module.found, eager.found)
        torch.testing.assert_close(module.l.weight.grad, eager.l.weight.grad)


def test_attributes_of_parameters():
    module = Of(lambda m, a: m.l(a) * getattr(m.l.weight, "factor", 1.0))
    wrapped = ORTModule(module)
    for value in (None, 2.0, 4.0, None, 2.0):
        if value is not None:
            module.l.weight.factor = value
        elif hasattr(module.l.weight, "factor"):
            del module.l.weight.factor
        torch.testing.assert_close(wrapped(x()), module(x()))
        assert wrapped.fallback_reason is None


def test_each_answer_has_its_graph():
    wrapped = ORTModule(Of(lambda m, a: m.l(a) * factor(a.is_contiguous())))
    for _ in range(3):
        for argument in (x(), x(4, 3).t()):
            wrapped(argument).sum().backward()
            assert wrapped.fallback_reason is None
    (counts,) = wrapped.transition_counts().values()
    assert counts["question"] == 1 and sum(counts.values()) == 2


def test_a_second_start_asks_too(tmp_path, monkeypatch):
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path))
    for argument in (x(), x(4, 4)[1:], x()):
        module = Of(offset_of)
        torch.testing.assert_close(ORTModule(module)(argument), module(argument))
    assert len(list(tmp_path.glob("*.graph"))) == 2


def offset_of(m, a):
    return m.l(a) * (1.0 + a.storage_offset())
