"""Steps as users mix them: pending, nested and overlapping ones, several wrappers, outputs that are not new tensors."""

import copy
import gc
import itertools

import pytest
import torch
from modules import Of, assert_same, check, step, x

import lowtide
from lowtide._lowtide import Graph, Session
from lowtide.ortmodule import ORTModule


def pair():
    """A module, its wrapper, and a copy that stays PyTorch's."""
    module = Of(lambda m, a: torch.tanh(m.l(torch.sin(m.l(a)))))
    return ORTModule(module), copy.deepcopy(module)


def gradients(module):
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def assert_equal_gradients(wrapped, eager):
    assert wrapped.fallback_reason is None
    for ours, theirs in zip(gradients(wrapped), gradients(eager), strict=True):
        torch.testing.assert_close(ours, theirs)


# ---------------------------------------------------------------- several steps


def test_forwards_without_a_backward_are_freed():
    wrapped, _ = pair()
    for _ in range(2):
        wrapped(x(500, 4))
    gc.collect()
    before = lowtide.pool_bytes()
    for _ in range(20):
        wrapped(x(500, 4))
    after = lowtide.pool_bytes()
    assert after["live_bytes"] == before["live_bytes"] and after["free_bytes"] <= before["free_bytes"]
    kept = [wrapped(x(500, 4)) for _ in range(3)]
    assert lowtide.pool_bytes()["live_bytes"] > before["live_bytes"]
    del kept
    assert lowtide.pool_bytes()["live_bytes"] == before["live_bytes"]


ORDERS = {
    "nested": "f0 f1 f2 b2 b1 b0",
    "overlapping": "f0 f1 b0 f2 b1 b2",
    "first in first out": "f0 f1 f2 b0 b1 b2",
    "some without a backward": "f0 f1 b1 f2",
}


@pytest.mark.parametrize("order", ORDERS)
def test_backwards_come_in_any_order(order):
    runs = [pair(), pair()]
    for wrapped, eager in runs:
        pending = {}
        for word in ORDERS[order].split():
            index = int(word[1])
            if word[0] == "f":
                a = x(2 + index, 4)
                pending[index] = wrapped(a), eager(a)
            else:
                for output in pending.pop(index):
                    (output * (index + 1)).sum().backward()
        assert_equal_gradients(wrapped, eager)


def test_a_forward_inside_of_another_modules_backward():
    wrapped, eager = pair()
    found = []
    for module in (wrapped, eager):
        leaf = x(grad=True)
        output = module(leaf)

        @output.register_hook
        def train_once_more(gradient, module=module):
            with torch.enable_grad():
                module(x(5, 4)).sum().backward()
            return gradient

        output.sum().backward()
        found.append(leaf.grad)
    torch.testing.assert_close(*found)
    assert_equal_gradients(wrapped, eager)


def test_a_retained_graph_outside_of_the_module_runs_twice():
    wrapped, _ = pair()
    output = wrapped(x())
    loss = (output**2).sum()
    first = torch.autograd.grad(loss, output, retain_graph=True)
    second = torch.autograd.grad(loss, output, retain_graph=True)
    torch.testing.assert_close(first, second)
    loss.backward()
    assert wrapped.fallback_reason is None


# ---------------------------------------------------------------- outputs


def parameters_and_views(m, a):
    return m.l.weight, m.l.weight.t(), m.l.weight[1:], m.l(a), m.l.bias.view(2, 2)


def inputs_and_views(m, a, b):
    return a, b, a[:, ::2], b.unsqueeze(0).expand(2, *b.shape), m.l(a + b)


def slices_of_one_result(m, a):
    y = torch.relu(m.l(a))
    return y, y[0], y.t(), y.reshape(-1)[2:5], y


def twelve(m, a):
    return tuple((m.l(a) * k).sum(1) if k % 2 else [m.l(a) + k] for k in range(12))


def dependent(m, a):
    y = torch.tanh(m.l(a))
    return y, (y * m.l.bias).sum(), y.exp()


def bypass(m, a, b):
    return m.l(a), b


CASES = {
    "parameters and views of them": (parameters_and_views, (x(),)),
    "inputs and views of them": (inputs_and_views, (x(grad=True), x(grad=True))),
    "inputs without gradients": (inputs_and_views, (x(), x())),
    "views of a result": (slices_of_one_result, (x(grad=True),)),
    "twelve in order": (twelve, (x(),)),
    "one computed from another": (dependent, (x(grad=True),)),
    "an input that passes by": (bypass, (x(), x(grad=True))),
    "non-contiguous inputs": (dependent, (x(4, 6).t()[::2, :].requires_grad_(),)),
    "broadcast inputs": (dependent, (x(1, 4).expand(5, 4),)),
}


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_pytorchs(name):
    function, args = CASES[name]
    check(Of(function), *args)


def test_an_output_that_the_loss_leaves_out_gives_no_gradient():
    module = Of(lambda m, a: (m.l(a), m.other(a)), other=torch.nn.Linear(4, 4))
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    for used in (0, 1, 0):
        for candidate in (wrapped, eager):
            candidate.zero_grad()
            candidate(x())[used].sum().backward()
        unused = ("other", "l")[used]
        assert getattr(eager, unused).weight.grad is None
        assert getattr(wrapped, unused).weight.grad is None and getattr(wrapped, unused).bias.grad is None
    assert wrapped.fallback_reason is None


@pytest.mark.parametrize("place", ["begin", "middle", "end"])
def test_unused_parameters_get_no_gradient_and_change_nothing(place):
    children = {name: torch.nn.Linear(4, 4) for name in ("begin", "middle", "end")}
    used = [name for name in children if name != place]
    module = Of(lambda m, a: getattr(m, used[1])(torch.relu(getattr(m, used[0])(a))), **children)
    wrapped = check(module, x())
    assert getattr(wrapped, place).weight.grad is None and wrapped.l.weight.grad is None


def test_unused_parameters_cause_no_other_capture():
    wrapped = ORTModule(Of(lambda m, a: m.l(a), other=torch.nn.Linear(4, 4)))
    wrapped(x())
    agent = wrapped._training_manager.last_agent
    wrapped.other.bias.grad = torch.ones(4)
    with torch.no_grad():
        wrapped.other.weight.mul_(2)
    wrapped(x()).sum().backward()
    assert wrapped._training_manager.last_agent is agent
    torch.testing.assert_close(wrapped.other.bias.grad, torch.ones(4))


def test_outputs_changed_in_place():
    # A linear layer's result is nothing of backward's: changing it is legal. A sigmoid's is backward's.
    linear = Of(lambda m, a: m.l(a))
    eager, wrapped = copy.deepcopy(linear), ORTModule(linear)
    for module in (eager, wrapped):
        module(x()).mul_(3).sum().backward()
    assert_equal_gradients(wrapped, eager)
    sigmoid = ORTModule(Of(lambda m, a: torch.sigmoid(m.l(a))))
    output = sigmoid(x())
    output.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


# ---------------------------------------------------------------- several wrappers


def test_wrappers_that_share_a_backbone():
    def build(wrap):
        torch.manual_seed(0)
        backbone = wrap(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()))
        return [wrap(Of(lambda m, a: m.l(m.back(a)), back=backbone)) for _ in range(2)], backbone

    (heads, backbone), (expected, eager) = build(ORTModule), build(lambda module: module)
    for _ in range(2):
        for ours, backs in ((heads, backbone), (expected, eager)):
            backs.zero_grad()
            loss = ours[0](x()).sum() + (ours[1](x(5, 4)) ** 2).sum() + backs(x(2, 4)).sum()
            loss.backward()
    assert all(head.fallback_reason is None for head in (*heads, backbone))
    assert_equal_gradients(backbone, eager)
    assert_equal_gradients(heads[1], expected[1])


SUBSETS = list(itertools.product([False, True], repeat=3))[1:]


@pytest.mark.parametrize(
    "wrapped_ones", [pytest.param(s, marks=pytest.mark.long) if sum(s) == 1 else s for s in SUBSETS], ids=str
)
def test_chains_of_wrappers_and_plain_modules(wrapped_ones):
    def build(wrap):
        torch.manual_seed(0)
        first = Of(lambda m, a: (torch.relu(m.l(a)), (a > 0).sum(1)))  # the second output is not differentiable
        rest = [Of(lambda m, a, n: (m.l(a) * n.unsqueeze(1), n)) for _ in range(2)]
        chain = [first, *rest]
        return [ORTModule(link) if wrap and yes else link for link, yes in zip(chain, wrapped_ones, strict=True)]

    chains = build(True), build(False)
    results = []
    for chain in chains:
        leaf = x(grad=True)
        values = (leaf,)
        for link in chain:
            values = link(*values)
        assert not values[1].requires_grad
        values[0].sum().backward()
        results.append([leaf.grad, *(gradient for link in chain for gradient in gradients(link))])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_wrappers_inside_of_wrappers_and_of_plain_modules():
    def build(wrap):
        torch.manual_seed(0)
        inner = wrap(torch.nn.Linear(4, 4))
        middle = wrap(Of(lambda m, a: torch.tanh(m.inner(m.l(a))), inner=inner))
        return torch.nn.Sequential(middle, torch.nn.Linear(4, 4), wrap(torch.nn.Sequential(inner, middle)))

    ours, theirs = build(ORTModule), build(lambda module: module)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert_same(step(ours, (x(grad=True),)), step(theirs, (x(grad=True),)))
    assert ours[0].fallback_reason is None and ours[2].fallback_reason is None


def test_two_wrappers_of_one_module_have_one_set_of_parameters():
    module = Of(lambda m, a: m.l(a).sum())
    one, other = ORTModule(module), ORTModule(module)
    (one(x()) + other(x(5, 4))).backward()
    torch.testing.assert_close(module.l.bias.grad, torch.full((4,), 8.0))
    assert one.fallback_reason is None and other.fallback_reason is None


def test_an_input_is_copied_into_strides_that_leave_gaps():
    text = "graph @gaps(%x: f32[40, 4] input strides(80000, 1)) {\n  %y: f32[40, 4] = Neg %x\n  return %y output\n}"
    session = Session(Graph.parse(text))
    wide = torch.randn(40, 80000)[:, :4]
    for tensor in (wide, wide.contiguous()):
        (found,), _ = session.forward([tensor], 0, False)
        assert torch.equal(found, -tensor)
