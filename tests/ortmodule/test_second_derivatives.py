"""create_graph=True: PyTorch's forward again, with eager's second derivatives."""

import copy
import warnings

import pytest
import torch
from modules import Of, x

from lowtide import compile_backend
from lowtide.errors import EngineError
from lowtide.ortmodule import ORTModule

pytestmark = pytest.mark.filterwarnings("ignore:create_graph=True")


def pair(module):
    """(wrapped, eager) in float64."""
    module = module.double()
    return ORTModule(module), copy.deepcopy(module)


def assert_same_gradients(wrapped, eager):
    for (name, ours), theirs in zip(wrapped.named_parameters(), eager.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), name
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad)
    for ours, theirs in zip(wrapped.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


def critic():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.LeakyReLU(0.2), torch.nn.Flatten(), torch.nn.Linear(64, 1)
    )


def penalty(target, real, fake, weight):
    between = (weight * real + (1 - weight) * fake).requires_grad_()
    score = target(between)
    (slope,) = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True)
    return ((slope.flatten(1).norm(2, dim=1) - 1) ** 2).mean()


def test_gradient_penalties_of_a_wgan_train():
    wrapped, eager = pair(critic())
    losses = []
    for target in (wrapped, eager):
        optimizer = torch.optim.Adam(target.parameters(), 1e-2)
        generator = torch.Generator().manual_seed(3)
        losses.append([])
        for _ in range(4):
            real, fake = (torch.randn(3, 1, 6, 6, generator=generator, dtype=torch.float64) for _ in range(2))
            weight = torch.rand(3, 1, 1, 1, generator=generator, dtype=torch.float64)
            loss = target(fake).mean() - target(real).mean() + 10 * penalty(target, real, fake, weight)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert wrapped.fallback_reason is None
    torch.testing.assert_close(*map(torch.tensor, losses))
    assert_same_gradients(wrapped, eager)


class Tasks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = torch.nn.Linear(4, 8)
        self.heads = torch.nn.ModuleList(torch.nn.Linear(8, 1) for _ in range(2))
        self.weights = torch.nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, inputs):
        hidden = torch.tanh(self.shared(inputs))
        return [head(hidden).pow(2).mean() for head in self.heads]


def test_grad_norm():
    wrapped, eager = pair(Tasks())
    for target in (wrapped, eager):
        losses = [weight * loss for weight, loss in zip(target.weights, target(x().double()), strict=True)]
        shared = target.shared.weight
        norms = torch.stack([torch.autograd.grad(loss, shared, create_graph=True)[0].norm() for loss in losses])
        balance = (norms - norms.detach().mean()).abs().sum()
        sum(losses).backward(retain_graph=True)
        target.weights.grad = torch.autograd.grad(balance, target.weights)[0]
    assert wrapped.fallback_reason is None
    assert_same_gradients(wrapped, eager)


def test_backward_with_create_graph_and_the_penalty_of_parameters():
    wrapped, eager = pair(Of(lambda m, a: torch.tanh(m.l(a)).sum()))
    for target in (wrapped, eager):
        parameters = list(target.parameters())
        loss = target(x().double())
        found = torch.autograd.grad(loss, parameters, create_graph=True)
        (loss + sum(gradient.pow(2).sum() for gradient in found)).backward()
    assert_same_gradients(wrapped, eager)


def test_outside_of_the_module_they_are_pytorchs_without_a_notice():
    wrapped = ORTModule(Of(lambda m, a: torch.tanh(m.l(a))))
    output = wrapped(x())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (first,) = torch.autograd.grad((output**3).sum(), output, create_graph=True)
        torch.autograd.grad(first.sum(), output, retain_graph=True)
    assert wrapped.fallback_reason is None


def test_third_derivatives_and_incoming_gradients_with_a_history():
    wrapped, eager = pair(Of(lambda m, a: torch.sin(m.l(a))))
    found = []
    for target in (wrapped, eager):
        leaf = x().double().requires_grad_()
        value = (target(leaf * 2) ** 3).sum()
        for _ in range(3):
            (slope,) = torch.autograd.grad(value, leaf, create_graph=True)
            value = slope.pow(2).sum()
        value.backward()
        found.append(leaf.grad)
    torch.testing.assert_close(*found)
    assert_same_gradients(wrapped, eager)


def test_buffers_are_updated_once():
    module = Of(lambda m, a: torch.tanh(m.n(m.l(a))), n=torch.nn.BatchNorm1d(4))
    wrapped, eager = pair(module)
    for target in (wrapped, eager):
        leaf = x(6, 4).double().requires_grad_()
        (slope,) = torch.autograd.grad(target(leaf).pow(2).sum(), leaf, create_graph=True)
        slope.pow(2).sum().backward()
    assert module.n.num_batches_tracked == 1
    assert_same_gradients(wrapped, eager)


def test_containers_numbers_and_kept_outputs():
    def forward(m, pair, *, scale, name="x"):
        y = torch.tanh(m.l(pair["a"]) * scale + pair["b"])
        return {"logits": y, "loss": y.pow(2).sum(), name: [y[0], pair["b"]]}

    module = Of(forward).double()
    eager, wrapped = copy.deepcopy(module), ORTModule(module, keep_outputs=("loss", "x.0"))
    for scale in (0.5, 0.25, 0.125):
        found = []
        for target in (wrapped, eager):
            leaf = x().double().requires_grad_()
            output = target({"a": leaf, "b": leaf.detach() + 1}, scale=scale)
            value = output["loss"] + output["x"][0].sum()
            found.append(torch.autograd.grad(value, leaf, create_graph=True)[0])
            found[-1].pow(2).sum().backward()
        torch.testing.assert_close(*found)
    assert wrapped.fallback_reason is None
    assert_same_gradients(wrapped, eager)


def test_autocast_around_the_call():
    module = Of(lambda m, a: torch.tanh(m.l(a)))
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    found = []
    for target in (wrapped, eager):
        leaf = x(grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            output = target(leaf)
        (slope,) = torch.autograd.grad(output.float().sum(), leaf, create_graph=True)
        slope.pow(2).sum().backward()
        found.append(leaf.grad)
    torch.testing.assert_close(*found, rtol=2e-2, atol=2e-2)
    assert wrapped.fallback_reason is None


def test_one_notice_that_tells_of_dropout():
    wrapped = ORTModule(Of(lambda m, a: torch.dropout(torch.tanh(m.l(a)), 0.5, True)))
    leaf = x(grad=True)
    state = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in (3, 3, 5):
            leaf = x(rows, 4, grad=True)
            output = wrapped(leaf).sum()
            state = torch.get_rng_state()
            slopes = [torch.autograd.grad(output, leaf, create_graph=True)[0] for _ in range(2)]
            assert torch.equal(*slopes)
            assert torch.equal(state, torch.get_rng_state())
    told = [warning for warning in caught if "create_graph=True" in str(warning.message)]
    assert len(told) == 1 and "dropout" in str(told[0].message) and told[0].filename == __file__


def test_an_argument_that_nobody_else_holds_or_that_is_changed():
    wrapped, eager = pair(Of(lambda m, a, b: torch.tanh(m.l(a) + b)))
    leaf = x().double().requires_grad_()
    slopes = [torch.autograd.grad(each(leaf, x().double()).sum(), leaf, create_graph=True) for each in (wrapped, eager)]
    torch.testing.assert_close(*slopes)
    b = x().double()
    output = wrapped(leaf, b).sum()
    b.add_(1)
    with pytest.raises(EngineError, match="argument 'args_1'.*inplace"):
        torch.autograd.grad(output, leaf, create_graph=True)


@pytest.mark.parametrize("is_held", [True, False])
def test_arguments_with_a_history_in_common(is_held):
    wrapped, eager = pair(Of(lambda m, a, b: torch.tanh(m.l(a)) + b))
    wrapped(x().double(), x().double().requires_grad_())
    found = []
    for target in (wrapped, eager):
        leaf = x().double().requires_grad_()
        held = [leaf * 3]
        output = target(leaf, held[0] if is_held else leaf * 3).pow(2).sum()
        (slope,) = torch.autograd.grad(output, leaf, create_graph=True)
        slope.pow(2).sum().backward()
        found.append(leaf.grad)
    torch.testing.assert_close(*found)
    assert_same_gradients(wrapped, eager)


def test_a_module_that_is_called_on_its_own_output():
    wrapped, eager = pair(Of(lambda m, a: torch.tanh(m.l(a))))
    for target in (wrapped, eager):
        parameters = list(target.parameters())
        first = target(x().double())
        found = torch.autograd.grad(target(first).sum(), parameters, create_graph=True)
        sum(gradient.pow(2).sum() for gradient in found).backward()
    assert_same_gradients(wrapped, eager)


def test_a_plain_backward_after_one_with_a_graph():
    wrapped, eager = pair(Of(lambda m, a: torch.tanh(m.l(a)).sum()))
    for target in (wrapped, eager):
        leaf = x().double().requires_grad_()
        loss = target(leaf)
        (slope,) = torch.autograd.grad(loss, leaf, create_graph=True)
        loss.backward(retain_graph=True)
        slope.pow(2).sum().backward()
    assert_same_gradients(wrapped, eager)


def test_a_compiled_model_with_statistics():
    torch.compiler.reset()
    module = Of(lambda m, a: torch.tanh(m.n(m.l(a))), n=torch.nn.BatchNorm1d(4)).double()
    eager = copy.deepcopy(module)
    for target in (torch.compile(module, backend=compile_backend.lowtide), eager):
        leaf = x(6, 4).double().requires_grad_()
        (slope,) = torch.autograd.grad(target(leaf * 1).pow(2).sum(), leaf, create_graph=True)
        slope.pow(2).sum().backward()
    assert_same_gradients(module, eager)
