"""Checkpoints within checkpoints: torch.export records their changes of grad mode one by one and loses some."""

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import lowtide.compile_backend
from lowtide.capture.grad_modes import refuse_lost_gradients
from lowtide.errors import UnsupportedError
from lowtide.ortmodule import ORTModule


class Checkpointed(torch.nn.Module):
    def __init__(self, inner, reentrant=False, **options):
        super().__init__()
        self.inner = inner
        self.options = {"use_reentrant": reentrant, **options}

    def forward(self, x):
        return checkpoint(self.inner, x, **self.options)


class Head(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.out = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.out(self.inner(x)).square().mean()


def layers():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Tanh())


def composable():
    from torch.distributed._composable import checkpoint as checkpointed

    inner = layers()
    outer = torch.nn.Sequential(torch.nn.Linear(8, 8), inner)
    checkpointed(inner)
    checkpointed(outer)
    return outer


def selective():
    def policy(context, op, *arguments, **keywords):
        return torch.utils.checkpoint.CheckpointPolicy.PREFER_RECOMPUTE

    return Checkpointed(layers(), context_fn=lambda: create_selective_checkpoint_contexts(policy))


NESTED = {
    "two": lambda: Checkpointed(Checkpointed(layers())),
    "three, with layers between": lambda: Checkpointed(
        torch.nn.Sequential(layers(), Checkpointed(torch.nn.Sequential(layers(), Checkpointed(layers()))))
    ),
    "in a reentrant one": lambda: Checkpointed(Checkpointed(layers()), reentrant=True),
    "a reentrant one": lambda: Checkpointed(Checkpointed(layers(), reentrant=True)),
    "composable": composable,
    "selective": lambda: Checkpointed(selective()),
}


@pytest.mark.parametrize("wrap", [ORTModule, lambda m: torch.compile(m, backend=lowtide.compile_backend.lowtide)])
@pytest.mark.parametrize("made", NESTED)
def test_nested_checkpoints_keep_their_gradients(made, wrap):
    torch.manual_seed(0)
    eager = Head(NESTED[made]()).double()
    if made == "composable":  # its hooks hold the module that they were made for
        torch.manual_seed(0)
        module = Head(composable()).double()
    else:
        module = copy.deepcopy(eager)
    wrapped = wrap(module)
    for rows in (3, 5):
        x = torch.randn(rows, 8, dtype=torch.float64, requires_grad=True)
        given = x.detach().clone().requires_grad_()
        expected, loss = eager(x), wrapped(given)
        torch.testing.assert_close(loss, expected)
        expected.backward()
        loss.backward()
        torch.testing.assert_close(given.grad, x.grad)
        for of_eager, ours in zip(eager.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, of_eager.grad)
    if isinstance(wrapped, ORTModule):
        assert wrapped.fallback_reason is None


class WithoutGradients(torch.nn.Module):
    def forward(self, x):
        with torch.no_grad():
            doubled = x * 2
            x.add_(1)
        return x * 3, doubled, x


def test_a_lost_grad_mode_is_found():
    program = torch.export.export(WithoutGradients(), (torch.ones(3),), strict=False)
    refuse_lost_gradients(program, [True, False, True])
    with pytest.raises(UnsupportedError, match="lost a change of grad mode"):
        refuse_lost_gradients(program, [True, True, True])
