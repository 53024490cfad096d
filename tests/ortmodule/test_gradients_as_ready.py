"""Gradients reach PyTorch bucket by bucket while backward runs, with the bits that they have at its end."""

import copy
import importlib
import re
from pathlib import Path

import pytest
import torch

import lowtide
from lowtide.cli.simulate import regions_of
from lowtide.errors import EngineError
from lowtide.ortmodule import ORTModule

SWITCH = "ORTMODULE_ENABLE_MEM_EFFICIENT_GRAD_MGMT"
WIDTH = 2600  # 27 MB a layer: more than a bucket


class Net(torch.nn.Module):
    """Three layers, three buckets; the first and the last share nothing but the loss."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(3))
        self.drop = torch.nn.Dropout(0.2)

    def forward(self, x):
        for layer in self.layers:
            x = self.drop(torch.tanh(layer(x)))
        return x.square().mean()


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net()


def x(width=WIDTH, rows=2, seed=1):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def wrap(module):
    return ORTModule(copy.deepcopy(module))


def gradients(module):
    return [parameter.grad for parameter in module.parameters()]


def assert_same_bits(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.equal(ours, theirs)


def steps(wrapped, count=2):
    """Losses of some steps, then the parameters."""
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    losses = []
    for seed in range(count):
        optimizer.zero_grad()
        losses.append(wrapped(x(seed=seed)))
        losses[-1].backward()
        assert wrapped.fallback_reason is None
        optimizer.step()
    return [loss.detach() for loss in losses] + [parameter.detach() for parameter in wrapped.parameters()]


def order_of_hooks(wrapped):
    """Names of parameters, each with what backward has still to do when its hook runs."""
    order = []
    for name, parameter in wrapped.named_parameters():
        others = [other for other in wrapped.parameters() if other is not parameter]
        parameter.register_post_accumulate_grad_hook(
            lambda _, name=name, others=others: order.append((name, sum(other.grad is None for other in others)))
        )
    wrapped(x()).backward()
    return order


def test_hooks_run_while_backward_does(net):
    wrapped = wrap(net)
    order = order_of_hooks(wrapped)
    assert [name.split(".")[1] for name, _ in order] == ["2", "2", "1", "1", "0", "0"]
    # PyTorch has a bucket at a time, so that a hook sees no gradient of a later one.
    assert all(left >= 2 * int(name.split(".")[1]) for name, left in order)
    first, *later = wrapped.text().split("\nsteps\n")[1].split("  -- backward --\n")[1].split("  -- backward")
    assert len(later) == 2 and first.count("\n") < sum(region.count("\n") for region in later)


@pytest.mark.long
@pytest.mark.parametrize("name", ["gpt2", "bert", "llama"])
def test_gradients_of_large_models_leave_from_the_last_layer_to_the_first(name, monkeypatch):
    """The first of them before half of backward has run, by the predicted times of its steps."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks" / "training"))
    model, make_batch = importlib.import_module("models").build(name)
    wrapped, order = ORTModule(model), []
    for path, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, path=path: order.append(path))
    wrapped(**make_batch()).loss.backward()
    assert wrapped.fallback_reason is None
    agent = wrapped._training_manager.last_agent
    _, *regions = regions_of(agent.session, agent.symbol_values())
    times = [sum(step.ms for step in region.steps) for region in regions]
    assert times[0] < sum(times) / 2
    left = iter(order)
    layers = [[int(n) for _ in region.gradients for n in re.findall(r"\.(\d+)\.", next(left))] for region in regions]
    layers = [of_region for of_region in layers if of_region]
    assert len(layers) > 2 and not list(left)
    assert all(min(sooner) >= max(later) for sooner, later in zip(layers, layers[1:], strict=False)), layers


def test_the_switch_keeps_them_to_the_end(net, monkeypatch):
    expected = steps(wrap(net))
    monkeypatch.setenv(SWITCH, "0")
    wrapped = wrap(net)
    assert_same_bits(steps(wrapped), expected)
    seen = []
    parameters = list(wrapped.parameters())
    parameters[-1].register_hook(lambda gradient: seen.append(wrapped._training_manager.last_agent.backward_seconds))
    parameters[0].register_hook(lambda gradient: seen.append(wrapped._training_manager.last_agent.backward_seconds))
    wrapped.zero_grad()
    wrapped(x()).backward()
    assert len(set(seen)) == 1


def test_gradients_are_handed_over_without_a_copy_and_added_in_place(net):
    wrapped, seen = wrap(net).eval(), {}
    for name, parameter in wrapped.named_parameters():
        parameter.register_hook(lambda gradient, name=name: seen.__setitem__(name, gradient.data_ptr()))
    wrapped(x()).backward()
    assert {name: parameter.grad.data_ptr() for name, parameter in wrapped.named_parameters()} == seen
    first = [gradient.clone() for gradient in gradients(wrapped)]
    held = dict(seen)
    for times in (2, 3, 4):
        wrapped(x()).backward()
        assert {name: parameter.grad.data_ptr() for name, parameter in wrapped.named_parameters()} == held
        assert_same_bits(gradients(wrapped), [sum([gradient] * times) for gradient in first])


def optimizer_in_backward(module, lr=0.1):
    def update(parameter):
        with torch.no_grad():
            parameter.add_(parameter.grad, alpha=-lr)
        parameter.grad = None

    return [parameter.register_post_accumulate_grad_hook(update) for parameter in module.parameters()]


def test_an_optimizer_in_backward_lowers_the_peak(net):
    """Its hook uses each gradient up: from the second step on its bytes serve the rest of backward."""
    kept, wrapped = wrap(net), wrap(net)
    expected = steps(kept, 3)
    optimizer_in_backward(wrapped)
    assert_same_bits(steps(wrapped, 3), expected)
    layer = WIDTH * WIDTH * 4
    assert kept.memory_report()["planned_peak_bytes"] > 3 * layer
    assert wrapped.memory_report()["planned_peak_bytes"] < 1.05 * layer


def test_a_gradient_that_is_kept_after_all_stays_what_it_is(net):
    expected = gradients_of_one_step(net)
    wrapped = wrap(net).eval()
    hooks = optimizer_in_backward(wrapped, lr=0.0)
    for _ in range(3):
        wrapped(x()).backward()
    for hook in hooks:
        hook.remove()
    for _ in range(2):
        wrapped.zero_grad()
        wrapped(x()).backward()
        assert_same_bits(gradients(wrapped), expected)


def gradients_of_one_step(net):
    wrapped = wrap(net).eval()
    wrapped(x()).backward()
    return gradients(wrapped)


def once_in_a_hook(parameter, compute):
    """What `compute` returned, in a list, once backward has come to the parameter."""
    found = []

    def run(gradient):
        hook.remove()
        found.append(compute())

    hook = parameter.register_hook(run)
    return found


def test_backwards_through_the_same_forward(net):
    """Of parts, again, and one in a hook of another."""
    expected = gradients_of_one_step(net)
    wrapped = wrap(net).eval()
    parameters = list(wrapped.parameters())
    loss = wrapped(x())
    for some in ([5], [0], [2, 3], range(6)):
        found = torch.autograd.grad(loss, [parameters[index] for index in some], retain_graph=True)
        assert_same_bits(found, [expected[index] for index in some])
    inner = once_in_a_hook(parameters[4], lambda: torch.autograd.grad(loss, parameters, retain_graph=True))
    loss.backward(retain_graph=True)
    assert_same_bits(inner[0], expected)
    assert_same_bits(gradients(wrapped), expected)
    wrapped.zero_grad()
    loss.backward()
    assert_same_bits(gradients(wrapped), expected)
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


def test_pending_forwards_take_turns(net):
    wrapped = wrap(net).eval()
    expected = gradients_of_one_step(net)
    losses = [wrapped(x(seed=seed)) for seed in (5, 1, 6)]
    parameters = list(wrapped.parameters())
    others = once_in_a_hook(parameters[4], lambda: torch.autograd.grad(losses[2], parameters))
    losses[1].backward()
    assert_same_bits(gradients(wrapped), expected)
    alone = torch.autograd.grad(wrapped(x(seed=6)), parameters)
    assert_same_bits(others[0], alone)


def test_a_hook_that_raises_ends_backward_where_pytorch_does(net):
    wrapped = wrap(net)
    parameters = list(wrapped.parameters())

    def refuse(gradient):
        raise ValueError("not this one")

    hook = parameters[2].register_hook(refuse)
    with pytest.raises(ValueError, match="not this one"):
        wrapped(x()).backward()
    assert parameters[5].grad is not None and parameters[0].grad is None
    hook.remove()
    wrapped.zero_grad()
    wrapped.eval()(x()).backward()
    assert_same_bits(gradients(wrapped), gradients_of_one_step(net))


def test_what_later_regions_read_may_not_be_changed_by_a_hook(net):
    """In PyTorch, too."""
    for module in (copy.deepcopy(net), wrap(net)):
        parameters = list(module.parameters())

        def change(gradient, parameters=parameters):
            with torch.no_grad():
                parameters[2].mul_(2)

        parameters[4].register_hook(change)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            module(x()).backward()


class Shared(Net):
    """A weight at both ends, one that is frozen, one that is not used."""

    def __init__(self):
        super().__init__(700)
        self.layers[2].weight = self.layers[0].weight
        self.layers[1].weight.requires_grad_(False)
        self.unused = torch.nn.Linear(4, 4)
        self.drop.p = 0.0


def test_tied_frozen_and_unused_parameters():
    torch.manual_seed(0)
    eager = Shared()
    wrapped, calls = wrap(eager), []
    wrapped.layers[0].weight.register_post_accumulate_grad_hook(lambda parameter: calls.append(parameter.grad.clone()))
    for module in (eager, wrapped):
        module(x(700)).backward()
    assert len(calls) == 1 and torch.equal(calls[0], wrapped.layers[0].weight.grad)
    for ours, theirs in zip(gradients(wrapped), gradients(eager), strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-8)


def test_second_derivatives_go_through_the_chain():
    torch.manual_seed(0)
    eager = Net(700).eval()
    found = []
    for module in (eager, wrap(eager)):
        a = x(700).requires_grad_()
        (slope,) = torch.autograd.grad(module(a), [a], create_graph=True)
        slope.square().sum().backward()
        found.append([a.grad, *gradients(module)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-8)


def test_a_plan_that_is_verified_has_its_gradients_at_the_end(net):
    wrapped = ORTModule(copy.deepcopy(net), verify=True)
    assert_same_bits(steps(wrapped), steps(wrap(net)))


def test_levels_and_guard_keep_the_bits(net, monkeypatch):
    expected = steps(wrap(net))
    monkeypatch.setenv("LOWTIDE_GUARD", "1")
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    wrapped = wrap(net)
    assert_same_bits(steps(wrapped), expected)
    wrapped = wrap(net)
    optimizer_in_backward(wrapped)
    assert_same_bits(steps(wrapped), expected)


def test_a_second_backward_reads_what_it_was(net):
    wrapped = wrap(net).eval()
    loss = wrapped(x())
    optimizer_in_backward(wrapped)
    loss.backward(retain_graph=True)
    with pytest.raises((RuntimeError, EngineError), match="modified by an inplace operation"):
        loss.backward()


class WithOutput(Net):
    """The first region of backward reads the second output; no other does."""

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean(), x


@pytest.mark.parametrize("holds", [False, True])
def test_an_output_is_its_holders_alone_once_no_region_is_to_read_it(holds):
    wrapped, live, rows = ORTModule(WithOutput()), [], 256
    for parameter in wrapped.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: live.append(lowtide.pool_bytes()["live_bytes"]))
    loss, output = wrapped(x(rows=rows))
    if not holds:
        del output
    before = lowtide.pool_bytes()["live_bytes"]
    loss.backward()
    assert wrapped.fallback_reason is None
    assert (before - live[0] >= rows * WIDTH * 4) == (not holds)
