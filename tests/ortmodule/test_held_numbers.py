"""Numbers in attributes, config objects, dicts and globals that change from call to call are inputs of the graph."""

import copy
import logging
import math
import sys
import types

import pytest
import torch
from modules import assert_same, of, step

from lowtide.ortmodule import ORTModule

# Globals of a module of its own, as a training script has them.
script = types.ModuleType("a_training_script")
script.RATE = 0.5
sys.modules["a_training_script"] = script


class Config:
    def __init__(self):
        self.rate, self.weights, self.schedule = 0.5, {"kl": 0.1, "l 2": [1, 2.0]}, [Inner()]


class Inner:
    beta = 3.0

    def __init__(self):
        self.alpha = 0.25


def given(seed=1, grad=False):
    return torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_(grad)


def train(module, change, steps=8, reads=()):
    """Steps with eager's outputs and gradients in the engine; the transitions. `change(module, index)` before each;
    `reads`: names of attributes that forward changes."""
    eager = copy.deepcopy(module)
    wrapped = ORTModule(module)
    for index in range(steps):
        for each in (eager, module):
            change(each, index)
        assert_same(step(wrapped, [given(index)]), step(eager, [given(index)]), rtol=1e-12, atol=1e-13)
        assert wrapped.fallback_reason is None
        for name in reads:
            ours, theirs = getattr(module, name), getattr(eager, name)
            assert type(ours) is type(theirs) and ours == pytest.approx(theirs, rel=1e-14)
    (counts,) = wrapped.transition_counts().values()
    return counts


def set_in_config(m, index):
    m.config.rate = 0.9**index
    m.config.weights["kl"] = index / 10
    m.config.weights["l 2"][1] = 2.0 + index
    m.config.schedule[0].alpha = -0.5 * index


CHANGED = {
    "a float": (lambda m, a: m.l(a) * m.beta, {"beta": 0.1}, lambda m, i: setattr(m, "beta", i / 10)),
    "an int": (lambda m, a: m.l(a) * m.epoch / (1 + m.epoch), {"epoch": 0}, lambda m, i: setattr(m, "epoch", i)),
    "a submodule's": (
        lambda m, a: m.l(a) * m.l.scale,
        {},
        lambda m, i: setattr(m.l, "scale", 1.0 + i),
    ),
    "a config's": (
        lambda m, a: m.l(a) * m.config.rate + m.config.weights["kl"] * m.config.weights["l 2"][1] * a
        + m.config.schedule[0].alpha,
        {"config": Config()},
        set_in_config,
    ),
    "a global": (
        lambda m, a: m.l(a) * script.RATE,
        {},
        lambda m, i: setattr(script, "RATE", 0.5 + i),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
def test_eight_values_take_two_exports(name):
    function, attributes, change = CHANGED[name]
    assert train(of(function, **attributes), change) == {"first call": 1, "number": 1}


def test_a_variable_around_a_hook():
    scale = 1.0

    def hook(module, arguments, output):
        return output * scale

    module = of(lambda m, a: m.l(a).tanh())
    module.l.register_forward_hook(hook)
    wrapped = ORTModule(module)
    for index in range(5):
        scale = 1.0 + index
        torch.testing.assert_close(wrapped(given()), module(given()))
        assert wrapped.fallback_reason is None
    (counts,) = wrapped.transition_counts().values()
    assert counts == {"first call": 1, "number": 1} and scale == 5.0


def later(m, a):
    y = m.l(a)
    return y * 2 if m.epoch >= 3 else y


def test_a_comparison_takes_a_graph_for_each_answer():
    counts = train(of(later, epoch=0), lambda m, i: setattr(m, "epoch", [0, 1, 2, 5, 3, 9, 1, 4][i]))
    assert counts == {"first call": 1, "number": 1, "question": 1}


def test_an_argument_that_is_compared():
    module = of(lambda m, a, epoch: m.l(a) * 2 if epoch >= 3 else m.l(a))
    wrapped = ORTModule(module)
    for epoch in (*range(10), 1, 0, 7):
        torch.testing.assert_close(wrapped(given(), epoch), module(given(), epoch))
        assert wrapped.fallback_reason is None
    (counts,) = wrapped.transition_counts().values()
    assert counts == {"first call": 1, "number": 1, "question": 1}


def warmed(m, a):
    weight = min(1.0, m.step / 5) * max(0.1, m.tau * 0.9)
    return m.l(a) * weight if not m.step % 2 or m.tau else m.l(a)


def test_comparisons_are_of_pythons_own_numbers():
    def change(m, index):
        m.step, m.tau = index % 8, 0.5**index

    counts = train(of(warmed, step=0, tau=1.0), change, steps=24)
    assert counts["number"] == 1 and "attribute" not in counts and "constant" not in counts


def test_a_comparison_that_fails_is_pythons_error():
    module = of(lambda m, a: m.l(a) if 1 / m.k > 0.5 else -m.l(a), k=1)
    wrapped = ORTModule(module)
    for k in (1, 2, 3):
        module.k = k
        torch.testing.assert_close(wrapped(given()), module(given()))
    module.k = 0
    with pytest.raises(ZeroDivisionError):
        wrapped(given())
    module.k = 5
    torch.testing.assert_close(wrapped(given()), module(given()))
    assert wrapped.fallback_reason is None


def test_what_forward_needs_stays_a_constant():
    module = of(lambda m, a: sum(m.l(a) * m.beta for _ in range(m.n)), n=1, beta=0.5)

    def change(m, index):
        m.n, m.beta = 1 + index % 2, 0.5 + index

    assert train(module, change) == {"first call": 1, "number": 2, "constant": 1, "attribute": 1}


def annealed(m, a):
    m.temperature *= 0.9
    return m.l(a) / m.temperature


def bounded(m, a):
    m.temperature = max(m.temperature * 0.7, 0.25)
    return m.l(a) / m.temperature


def summed(m, a):
    loss = m.l(a).square().mean()
    m.total += loss.item()
    m.count += 1
    return loss + 0 * m.count


def halved(m, a):
    m.part = m.step / 10  # 0.0 at first, as it was
    m.step += 1
    return m.l(a) * m.part


def multiplied(m, a):
    m.seed = m.seed * 1103515245 + 12345
    return m.l(a) * (m.seed % 7)


WRITTEN = {
    "a temperature": (annealed, {"temperature": 1.0}, 2),
    "with a bound": (bounded, {"temperature": 1.0}, 3),
    "a part of a schedule": (halved, {"step": 0, "part": 0.0}, 2),
    "a sum of losses": (summed, {"total": 0.0, "count": 0}, 3),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_forward_computes_of_a_number_is_set(name):
    function, attributes, most = WRITTEN[name]
    counts = train(of(function, **attributes), lambda m, i: None, reads=attributes)
    assert sum(counts.values()) <= most


def test_a_whole_number_beyond_64_bits_is_pythons():
    module = of(multiplied, seed=1)
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    for index in range(5):
        torch.testing.assert_close(wrapped(given(index)), eager(given(index)))
        assert module.seed == eager.seed
    assert module.seed > 2**64 and "Python attribute 'seed'" in wrapped.fallback_reason


def test_numbers_among_the_outputs():
    module = of(lambda m, a, k: (m.l(a) * k, {"k": 2 * k, "beta": m.beta, "n": 3}), beta=0.5)
    wrapped = ORTModule(module)
    for index in range(6):
        module.beta = 0.5 + index
        found, expected = wrapped(given(), 0.1 * index), module(given(), 0.1 * index)
        torch.testing.assert_close(found[0], expected[0])
        assert found[1] == expected[1] and type(found[1]["k"]) is float
        assert wrapped.fallback_reason is None
    (counts,) = wrapped.transition_counts().values()
    assert sum(counts.values()) <= 3


def test_nothing_of_a_trace_stays():
    module = of(lambda m, a: m.l(a) * m.config.rate * script.RATE, config=Config())
    wrapped = ORTModule(module)
    for index in range(3):
        module.config.rate, script.RATE = 1.0 + index, 2.0 + index
        wrapped(given())
        assert (module.config.rate, script.RATE) == (1.0 + index, 2.0 + index)
    module.config.rate = torch.tensor(2.0, dtype=torch.float64)  # no number any more
    torch.testing.assert_close(wrapped(given()), module(given()))
    del module.config.rate
    with pytest.raises(AttributeError):
        wrapped(given())
    module.config.rate = 7.0
    torch.testing.assert_close(wrapped(given()), module(given()))


def test_second_derivatives_take_the_numbers_of_their_call():
    module = of(lambda m, a: (m.l(a) * m.beta).tanh(), beta=0.5)
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    found = []
    for index in range(2):
        module.beta = 0.5 + index
        wrapped(given())
    for index in range(3):
        for each, call in ((module, wrapped), (eager, eager)):
            each.beta = 0.5 + index
            point = given(grad=True)
            out = call(point).sum()
            each.beta = 100.0
            (gradient,) = torch.autograd.grad(out, point, create_graph=True)
            found.append(torch.autograd.grad(gradient.square().sum(), point)[0])
        torch.testing.assert_close(found[-2], found[-1])
        assert module.beta == 100.0


def test_the_inputs_of_a_graph_have_them():
    module = of(lambda m, a: m.l(a) * m.beta, beta=0.5)
    wrapped = ORTModule(module)
    for index in range(3):
        module.beta = 0.5 + index
        wrapped(given())
    info = wrapped._training_manager._graph_transition_manager.use_cache_or_reconstruct_post_processed_model(
        (given(),), {}
    )[1]
    module.beta = 9.0
    assert 9.0 in [tensor.item() for tensor in info.construct_inputs((given(),), {}) if tensor.dim() == 0]
    assert info.restore_outputs([given()]) is not None


def test_keyword_arguments_share_their_graph():
    module = of(lambda m, a, k=1.0: m.l(a) * m.beta * k, beta=0.5)
    wrapped = ORTModule(module)
    for index in range(3):
        module.beta = 0.5 + index
        torch.testing.assert_close(wrapped(given()), module(given()))
        torch.testing.assert_close(wrapped(a=given()) if index else wrapped(given()), module(given()))
    (counts,) = wrapped.transition_counts().values()
    assert sum(counts.values()) <= 3


def scheduled(m, a):
    kl = 1 / (1 + math.exp(-0.5 * (m.step - 4)))
    cosine = 0.5 * (1 + math.cos(math.pi * m.step / 10))
    if math.sqrt(m.step) > 2:
        cosine = cosine * 2
    return m.l(a) * kl + a * cosine * math.tanh(m.step)


def test_functions_of_pythons_math():
    counts = train(of(scheduled, step=0), lambda m, index: setattr(m, "step", index))
    assert counts == {"first call": 1, "number": 1, "question": 1}


def test_a_function_of_pythons_math_that_raises():
    module = of(lambda m, a: m.l(a) * math.sqrt(m.k), k=1.0)
    wrapped = ORTModule(module)
    for module.k in (1.0, 2.0, 3.0):
        torch.testing.assert_close(wrapped(given()), module(given()))
    module.k = -1.0
    with pytest.raises(ValueError, match="math domain"):
        wrapped(given())
    module.k = 4.0
    torch.testing.assert_close(wrapped(given()), module(given()))


def test_a_few_numbers_only_are_inputs():
    module = of(lambda m, a: m.l(a) * sum(m.table), table=[float(each) for each in range(100)])
    wrapped = ORTModule(module)
    for index in range(3):
        module.table[:] = [each + index for each in module.table]
        torch.testing.assert_close(wrapped(given()), module(given()))
    (counts,) = wrapped.transition_counts().values()
    assert counts == {"first call": 1, "attribute": 2}


def printing(m, a):
    print("beta", m.beta)
    return m.l(a) * m.beta


def logging_it(m, a):
    logging.getLogger("of a script").warning("beta %s", m.beta)
    return m.l(a) * m.beta


def noting(m, a):
    m.note = f"beta {m.beta}"
    return m.l(a) * m.beta


@pytest.mark.parametrize("function", [printing, logging_it, noting])
def test_a_number_in_a_text_is_the_calls_own(function, capsys, caplog):
    module = of(function, beta=0.5, note=None)
    wrapped = ORTModule(module)
    for index in range(4):
        module.beta = 0.5 + index
        found = wrapped(given())
        told = capsys.readouterr().out + caplog.text + str(module.note)
        assert f"beta {module.beta}" in told and "zuf" not in told
        torch.testing.assert_close(found, module(given()))
        caplog.clear(), capsys.readouterr()


def both(m, a):
    m.total += m.l(a).sum().item()
    return m.l(a) * m.beta * (2 if m.beta * 2 > 3.0 else 1)


def test_a_second_start_takes_the_graphs_from_disk(folder, exports):
    before = []
    for _ in range(3):
        module = of(both, beta=0.5, total=0.0)
        eager, wrapped = copy.deepcopy(module), ORTModule(module)
        for index in range(6):
            module.beta = eager.beta = 0.5 + index
            torch.testing.assert_close(wrapped(given(index)), eager(given(index)))
            assert wrapped.fallback_reason is None and module.total == pytest.approx(eager.total, rel=1e-14)
        before.append(len(exports))
    assert before[0] > 0 and before[1] == before[2] == before[0]


def test_a_drop_rate_that_changes():
    dropout = torch.nn.Dropout(0.1)
    wrapped = ORTModule(torch.nn.Sequential(dropout, torch.nn.Identity()))
    for rate in (0.1, 0.2, 0.5, 0.75, 0.9, 0.0, 1.0, 0.3):
        dropout.p = rate
        ones = torch.ones(20000, dtype=torch.float64, requires_grad=True)
        found = wrapped(ones)
        found.sum().backward()
        assert (found == 0).double().mean().item() == pytest.approx(rate, abs=0.02)
        assert rate == 1 or torch.allclose(found[found != 0], torch.tensor(1 / (1 - rate), dtype=torch.float64))
        assert torch.equal(ones.grad, found.detach()) and wrapped.fallback_reason is None
    (counts,) = wrapped.transition_counts().values()
    assert counts == {"first call": 1, "number": 1, "question": 2}
