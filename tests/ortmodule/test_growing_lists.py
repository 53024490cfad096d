"""Lists to which forward appends in each call, `self.losses.append(loss.item())`, are outputs of one graph."""

import copy

import pytest
import torch
from modules import of

from lowtide.ortmodule import ORTModule


class Meter:
    def __init__(self):
        self.values, self.count = [], 0

    def update(self, value):
        self.values.append(value)


def given(seed=1, rows=3):
    return torch.randn(rows, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def numbers(m, a):
    loss = m.l(a).square().mean()
    m.history.append(loss.item())
    return loss


def tensors(m, a):
    y = m.l(a)
    m.history.append(y.detach())
    return y.square().mean()


def extended(m, a):
    y = m.l(a)
    m.history.extend([y.mean().item(), len(a), "step"])
    m.history += [y.sum(0).detach()]
    return y.square().mean()


def in_a_dict(m, a):
    loss = m.l(a).square().mean()
    m.log["loss"].append(loss.item())
    m.log["norm"].append(m.l.weight.norm().item())
    return loss


def in_a_meter(m, a):
    loss = m.l(a).square().mean()
    m.meter.update(loss.item())
    return loss


def beside_a_count(m, a):
    m.l.steps += 1
    y = m.l(a)
    m.history.append(y.mean().item())
    m.meter.values.append(y.detach())
    return y.square().mean()


def beside_what_is_kept(m, a):
    m.last = y = m.l(a)
    m.log["last"] = y.detach()
    m.history.append(y.mean().item())
    return y.square().mean()


def beside_a_sum(m, a):
    loss = m.l(a).square().mean()
    m.l.steps = m.l.steps + loss.item()
    m.history.append(loss.item())
    return loss


def plain_values(m, a):
    m.history.append("step")
    m.log["loss"] += [0.5, (1, 2.0)]
    return m.l(a).square().mean()


def a_count(m, a):
    m.l.steps += 1
    m.history.append(m.l.steps)
    return m.l(a).square().mean()


def a_schedule(m, a):
    m.l.steps = m.l.steps * 0.9 + 0.1
    m.history += [m.l.steps, "step"]
    m.log["loss"].append((m.l.steps, 0.5))
    return m.l(a).square().mean() * m.l.steps


def asked_for_its_class(m, a):
    loss = m.l(a).square().mean()
    if isinstance(m.history, list):
        m.history.append(loss.item())
    return loss


def found_in(m):
    return [m.history, m.log["loss"], m.log["norm"], m.meter.values]


def built(function):
    module = of(function, history=[], log={"loss": [], "norm": []}, meter=Meter())
    module.l.steps = 0.0 if function in (beside_a_sum, a_schedule) else 0
    return module


FUNCTIONS = pytest.mark.parametrize(
    "function",
    [numbers, tensors, extended, in_a_dict, in_a_meter, beside_a_count, beside_what_is_kept, asked_for_its_class],
)


def check(function, steps=6):
    module = built(function)
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    for index in range(steps):
        x = given(index, 3 + index % 2)
        losses = [call(x) for call in (wrapped, eager)]
        for loss in losses:
            loss.backward()
        torch.testing.assert_close(*losses)
        torch.testing.assert_close(module.l.weight.grad, eager.l.weight.grad)
        assert module.l.steps == pytest.approx(eager.l.steps, rel=1e-12)
        for ours, theirs in zip(found_in(module), found_in(eager), strict=True):
            assert [type(each) for each in ours] == [type(each) for each in theirs]
            for one, other in zip(ours, theirs, strict=True):
                assert one == other if isinstance(one, str) else True
                assert isinstance(one, str) or torch.allclose(torch.as_tensor(one), torch.as_tensor(other))
        assert wrapped.fallback_reason is None
    (counts,) = wrapped.transition_counts().values()
    return counts


@FUNCTIONS
def test_two_exports_serve_any_length(function):
    counts = check(function, 12)
    assert sum(counts.values()) - counts.get("refused", 0) == 2


@pytest.mark.parametrize("function", [beside_a_sum, a_count, a_schedule])
def test_a_number_that_changes_beside_a_list(function):
    assert check(function, 12)["number"] == 1


def test_plain_values_are_appended_in_each_call():
    """Forward that did so ran in pieces, each call compiled anew, until PyTorch ran all of them."""
    check(plain_values, 12)


def test_a_second_start_takes_both_from_disk(folder, exports):
    check(numbers)
    before = len(exports)
    check(numbers)
    assert len(exports) == before


def looked_at(m, a):
    y = m.l(a).square().mean()
    m.history.append(y.item())
    return y / len(m.history)


def shortened(m, a):
    y = m.l(a).square().mean()
    m.history.append(y.item())
    m.history[:] = m.history[-2:]
    return y


def printed(m, a):
    y = m.l(a).square().mean()
    m.history.append(0.5)
    print(m.history)
    return y


@pytest.mark.parametrize("function", [looked_at, shortened, printed])
def test_a_list_that_is_looked_at_is_pythons(function, capsys):
    module = built(function)
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    for index in range(5):
        outputs, texts = zip(*((call(given(index)), capsys.readouterr().out) for call in (wrapped, eager)), strict=True)
        torch.testing.assert_close(*outputs)
        assert texts[0] == texts[1]
        assert module.history == pytest.approx(eager.history)
    assert wrapped.fallback_reason is not None


def counted(m, a):
    m.steps += 1
    return m.l(a).square().mean()


def kept(m, a):
    m.last = m.l(a)
    m.log["last"] = m.last.detach()
    return m.last.square().mean()


@pytest.mark.parametrize("function", [numbers, tensors, extended, counted, kept])
def test_second_derivatives_change_nothing(function):
    module = built(function)
    module.steps, module.last = 0, None
    eager = copy.deepcopy(module)
    wrapped = ORTModule(module)
    for index in range(4):
        for call in (wrapped, eager):
            x = given(index).requires_grad_()
            loss = call(x)
            (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
            (gradient.square().sum() + loss).backward()
        torch.testing.assert_close(module.l.weight.grad, eager.l.weight.grad)
        assert [len(each) for each in found_in(module)] == [len(each) for each in found_in(eager)]
        assert module.steps == eager.steps and wrapped.fallback_reason is None
        if function is kept:
            torch.testing.assert_close(module.last, eager.last)
            torch.testing.assert_close(module.log["last"], eager.log["last"])
