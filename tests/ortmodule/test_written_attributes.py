"""What forward does to Python: attributes of modules that it sets, counters and prints are in each call as in eager."""

import copy

import pytest
import torch
from cached import graphs
from modules import Of, x

from lowtide.ortmodule import ORTModule


def of(function, **attributes):
    module = Of(function)
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def hidden(m, a):
    m.hidden = torch.tanh(m.l(a))
    return m.hidden * 2


def pair(m, a):
    m.states = (m.l(a), {"mean": a.mean(), "kind": "tanh"})
    return m.states[0] + m.states[1]["mean"]


def of_a_child(m, a):
    m.l.last = a
    m.l.loss = m.l(a).square().sum()
    return m.l.loss


def detached(m, a):
    out = m.l(a)
    m.loss = out.sum().detach()
    return out


def recurrent(m, a):
    before = torch.zeros_like(a) if m.hidden is None else m.hidden
    m.hidden = torch.tanh(m.l(a) + before).detach()
    return m.hidden + m.l(a)


def recurrent_tree(m, a):
    before = {"cell": (torch.zeros_like(a), [a])} if m.hidden is None else m.hidden
    m.hidden = {"cell": (torch.tanh(m.l(a) + before["cell"][0]).detach(), [before["cell"][1][0].detach() * 2])}
    return m.hidden["cell"][0] + m.l(a) * m.hidden["cell"][1][0]


def sizes(m, a):
    m.length, m.shape = a.shape[0], (a.shape[0] * 2, a.shape[1])
    return m.l(a)


def shape(m, a):
    m.shape = a.shape
    m.states = {"rest": a.shape[1:], "length": a.size(0)}
    return m.l(a)


def mask_once(m, a):
    if m.mask is None:
        m.mask = torch.tril(torch.ones(3, 3))
    return m.mask @ m.l(a)


def counted(m, a):
    m.steps += 1
    return m.l(a)


def counted_twice(m, a):
    m.steps = 2 + m.steps
    m.l.calls = m.l.calls - 1
    m.last = m.l(a)
    return m.last


def random_number(m, a):
    m.last = torch.rand(1) * 0
    return m.l(a) + m.last


def with_a_hook():
    module = Of(lambda m, a: m.l(a) * 2)
    module.l.register_forward_hook(lambda layer, args, output: setattr(layer, "features", output))
    return module


WRITES = {
    "a tensor": lambda: of(hidden),
    "a tensor that was None": lambda: of(hidden, hidden=None),
    "a tree": lambda: of(pair),
    "of a child": lambda: of(of_a_child),
    "a detached loss": lambda: of(detached),
    "a state": lambda: of(recurrent, hidden=None),
    "a tree of states": lambda: of(recurrent_tree, hidden=None),
    "sizes": lambda: of(sizes),
    "a shape": lambda: of(shape),
    "a cache": lambda: of(mask_once, mask=None),
    "a counter": lambda: of(counted, steps=0),
    "counters": lambda: with_calls(of(counted_twice, steps=5)),
    "a random number": lambda: of(random_number),
    "a hook": with_a_hook,
}


def with_calls(module):
    module.l.calls = 0
    return module


def attributes(module):
    names = ("hidden", "states", "last", "loss", "length", "shape", "mask", "steps", "calls", "features")
    return [(name, vars(each)[name]) for each in module.modules() for name in names if name in vars(each)]


def assert_same_attributes(ours, theirs):
    ours, theirs = attributes(ours), attributes(theirs)
    assert [name for name, _ in ours] == [name for name, _ in theirs]
    for (name, one), (_, other) in zip(ours, theirs, strict=True):
        (one, structure), (other, expected) = map(torch.utils._pytree.tree_flatten, (one, other))
        assert structure == expected, name
        for a, b in zip(one, other, strict=True):
            assert type(a) is type(b), name
            if isinstance(a, torch.Tensor):
                torch.testing.assert_close(a, b, msg=lambda text, name=name: f"{name}: {text}")
                assert a.requires_grad == b.requires_grad, name
            else:
                assert a == b, name


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", WRITES)
def test_attributes_are_set_as_eager_sets_them(name, grad):
    module = WRITES[name]()
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    with torch.set_grad_enabled(grad):
        for call in range(4):
            torch.testing.assert_close(wrapped(x()), eager(x()))
            assert wrapped.fallback_reason is None, (call, wrapped.fallback_reason)
            assert_same_attributes(module, eager)
    (counts,) = wrapped.transition_counts().values()
    assert sum(counts.values()) <= 2


def hidden_and_sizes(m, a):
    sizes(m, a)
    return hidden(m, a) + m.length


def test_other_sizes_need_no_export():
    module = of(hidden_and_sizes)
    wrapped = ORTModule(module)
    for rows in (3, 5, 2):
        wrapped(x(rows, 4))
        assert (module.length, module.shape) == (rows, (2 * rows, 4)) and module.hidden.shape == (rows, 4)
    (counts,) = wrapped.transition_counts().values()
    assert sum(counts.values()) == 1


def test_sizes_among_arguments_and_outputs_are_pytorchs():
    def resized(m, a, size):
        return m.l(a) * size.numel(), a.shape, {"size": a.size(), "rest": a.shape[1:], "given": size}

    wrapped = ORTModule(Of(resized))
    for rows in (3, 5):
        _, whole, parts = wrapped(x(rows, 4), torch.Size([2, rows]))
        assert whole == (rows, 4) and parts == {"size": (rows, 4), "rest": (4,), "given": (2, rows)}
        assert {type(size) for size in (whole, *parts.values())} == {torch.Size}
        assert wrapped.fallback_reason is None


def test_gradients_flow_through_what_was_set():
    module = of(hidden)
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    for model, inner in ((wrapped, module), (eager, eager)):
        (model(x()).sum() + inner.hidden.square().sum()).backward()
    assert wrapped.fallback_reason is None
    torch.testing.assert_close(module.l.weight.grad, eager.l.weight.grad)


def test_what_is_set_and_returned_is_one_tensor():
    def both(m, a):
        m.last = m.l(a)
        return m.last

    wrapped = ORTModule(of(both))
    output = wrapped(x())
    assert wrapped.fallback_reason is None and wrapped.module.last is output


def test_the_user_sets_a_counter_back():
    module = of(counted, steps=0)
    wrapped = ORTModule(module)
    for start in (0, 100):
        module.steps = start
        for step in range(3):
            wrapped(x())
            assert wrapped.fallback_reason is None and module.steps == start + step + 1
    module.steps = 0.5
    wrapped(x())
    assert module.steps == 1.5


LOOKED_AT = {
    "a branch": lambda m, a: (setattr(m, "steps", m.steps + 1), m.l(a) * (2 if m.steps % 2 else 3))[1],
    "a factor": lambda m, a: (setattr(m, "steps", m.steps + 1), m.l(a) * m.steps)[1],
    "by itself": lambda m, a: (setattr(m, "steps", m.steps + m.steps), m.l(a))[1],
}


@pytest.mark.parametrize("name", LOOKED_AT)
def test_a_counter_that_forward_looks_at_is_a_number(name):
    module = of(LOOKED_AT[name], steps=1)
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    for _ in range(6):
        torch.testing.assert_close(wrapped(x()), eager(x()))
        assert wrapped.fallback_reason is None
        assert module.steps == eager.steps and type(module.steps) is int
    (counts,) = wrapped.transition_counts().values()
    assert sum(counts.values()) == (3 if name == "a branch" else 2)


@pytest.mark.parametrize("name", ["a tree", "counters", "sizes", "a shape", "of a child"])
def test_a_second_start_sets_them_too(name, folder, exports):
    module = WRITES[name]()
    eager = copy.deepcopy(module)
    for _ in range(2):
        before = len(exports)
        wrapped = ORTModule(module)
        for _ in range(2):
            torch.testing.assert_close(wrapped(x()), eager(x()))
            assert_same_attributes(module, eager)
        assert wrapped.fallback_reason is None
    assert len(graphs(folder)) == 1 and len(exports) == before


# ---- prints


def printing(m, a):
    print("in", m.name, 3, sep="-")
    if a.shape[1] == 4:
        print("four columns", end=".")
    return m.l(a)


def test_prints_are_printed_once_in_each_call(folder, exports, capsys):
    module = of(printing, name="net")
    for start in range(2):
        wrapped = ORTModule(module)
        for _ in range(3):
            capsys.readouterr()
            wrapped(x())
            assert capsys.readouterr().out == "in-net-3\nfour columns."
            assert wrapped.fallback_reason is None and len(exports) == 1, start


def prints_as_eager(text, capsys):
    module = Of(lambda m, a: (print("rows:", text(a)), m.l(a))[1])
    wrapped = ORTModule(module)
    for rows in (3, 5, 3):
        module(x(rows, 4))
        expected = capsys.readouterr().out
        wrapped(x(rows, 4))
        assert capsys.readouterr().out == expected
    return wrapped


@pytest.mark.parametrize("text", [lambda a: a.shape, lambda a: a, lambda a: f"{a.mean()}"])
def test_what_is_computed_is_printed_by_pytorch(text, capsys):
    assert prints_as_eager(text, capsys).fallback_reason is not None


@pytest.mark.parametrize("text", [lambda a: f"{a.shape[0]} rows", lambda a: str(a.shape)])
def test_each_size_has_its_text(text, capsys):
    assert prints_as_eager(text, capsys).fallback_reason is None
