"""Losses of one call that have nothing to do with one another, each with a backward of its own that keeps no graph: the
second was PyTorch's error that the graph is gone."""

import copy
import gc
import weakref

import pytest
import torch
from modules import Of, assert_same_state, x

from lowtide.compile_backend import lowtide
from lowtide.errors import EngineError
from lowtide.ortmodule import ORTModule


class ActorAndCritic(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)
        self.drop, self.norm = torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(4)

    def forward(self, x):
        value = self.critic(self.norm(x))
        with torch.no_grad():
            advantage = (x[:, :1] - value).detach()
        return {"actor": (self.actor(x).log_softmax(-1) * advantage).mean(), "critic": (value**2).mean()}


@pytest.mark.parametrize("door", ["wrapper", "compile"])
def test_two_backwards_and_steps_between_them(door):
    """The optimizer of the first has changed what the second does not depend on."""
    torch.compiler.reset()
    theirs = ActorAndCritic().double()
    ours = copy.deepcopy(theirs)
    found = []
    through = ORTModule(ours) if door == "wrapper" else torch.compile(ours, backend=lowtide)
    for module, call in ((theirs, theirs), (ours, through)):
        optimizers = {name: torch.optim.SGD(getattr(module, name).parameters(), 0.1) for name in ("actor", "critic")}
        for step in range(3):
            losses = call(torch.linspace(-1, 1, 4 * (3 + step // 2), dtype=torch.float64).view(-1, 4).sin())
            for name, optimizer in optimizers.items():
                optimizer.zero_grad()
                losses[name].backward()
                optimizer.step()
        gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
        found.append((dict(module.state_dict()), gradients))
    torch.testing.assert_close(*found)


def test_the_same_numbers_are_drawn_again():
    torch.manual_seed(0)
    wrapped = ORTModule(
        Of(lambda m, a: (torch.dropout(m.l(a), 0.5, True), m.k(torch.dropout(a, 0.5, True))), k=torch.nn.Linear(4, 4))
    )
    first, second = wrapped(x())
    expected = torch.autograd.grad(second.sum(), wrapped.k.weight, retain_graph=True)
    first.sum().backward()
    second.sum().backward()
    torch.testing.assert_close(wrapped.k.weight.grad, *expected)


def test_what_the_second_depends_on_may_not_change_between():
    wrapped = ORTModule(Of(lambda m, a: (m.l(a).sum(), (m.k(a) ** 2).sum()), k=torch.nn.Linear(4, 4)))
    first, second = wrapped(x())
    first.backward()
    with torch.no_grad():
        wrapped.k.weight.add_(1)
    with pytest.raises(EngineError, match=r"'k.weight', which has been modified .*before the optimizer's step"):
        second.backward()


def test_one_that_leads_to_another_has_gone_with_it():
    def forward(m, a):
        hidden = m.l(a)
        return hidden, (hidden**2).sum(), m.k(a).sum()

    wrapped = ORTModule(Of(forward, k=torch.nn.Linear(4, 4)))
    hidden, loss, other = wrapped(x())
    loss.backward()
    other.backward()
    for gone in (hidden.sum(), loss):
        with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
            gone.backward()


def fixed_point(step, start):
    for _ in range(30):
        start = step(start)
    return start


class Equilibrium(torch.nn.Module):
    """A fixed point, whose gradient is one of another: a hook in the backward of the output solves for it, by the
    vector-Jacobian products of an output of the same graph."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer, self.head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)

    def cell(self, z, x):
        return torch.tanh(self.inner(z) * 0.5 + self.outer(x))

    def forward(self, x):
        with torch.no_grad():
            z = fixed_point(lambda z: self.cell(z, x), torch.zeros_like(x))
        z = self.cell(z, x)
        start = z.clone().detach().requires_grad_()
        again = self.cell(start, x)

        def solve(gradient):
            def step(v):
                return torch.autograd.grad(again, start, v, retain_graph=True)[0] + gradient

            return fixed_point(step, gradient)

        z.register_hook(solve)
        return self.head(z)


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_a_hook_that_differentiates_an_output_of_the_same_piece(with_pieces):
    theirs = Equilibrium().double()
    ours = copy.deepcopy(theirs)
    for call in (theirs, ORTModule(ours)):
        for rows in (3, 3, 5):
            call(torch.linspace(-1, 1, 4 * rows, dtype=torch.float64).view(rows, 4)).square().sum().backward()
    assert_same_state(ours, theirs)


def test_a_batch_is_held_as_long_as_the_outputs_are():
    wrapped = ORTModule(Of(lambda m, a, b: ((m.l(a) * b).sum(), (m.k(a) * b).sum()), k=torch.nn.Linear(4, 4)))
    for _ in range(2):
        b = x() + 1
        seen = weakref.ref(b)
        first, second = wrapped(x(), b)
        del b
        first.backward()
        second.backward()
        assert wrapped.k.weight.grad is not None
        del first, second
        gc.collect()
        assert seen() is None
