"""Hooks on outputs that others depend on see the whole gradient, and what they return flows on.
(They saw what came from outside of the module alone: None, where the loss is made inside.)"""

import copy

import pytest
import torch

from lowtide.ortmodule import ORTModule


class Model(torch.nn.Module):
    def __init__(self, p=0.0):
        super().__init__()
        self.fc, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
        self.norm, self.dropout = torch.nn.BatchNorm1d(8), torch.nn.Dropout(p)

    def forward(self, x, y):
        hidden = self.norm(self.dropout(self.fc(x)).tanh())
        logits = self.head(self.dropout(hidden))
        return torch.nn.functional.cross_entropy(logits, y) + hidden.square().mean(), logits, hidden


def pair(*args):
    model = Model(*args).double()
    return model, ORTModule(copy.deepcopy(model))


def batch(rows=5):
    return torch.randn(rows, 8, dtype=torch.float64), torch.randint(4, (rows,))


def gradients(model):
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("from_outside", [False, True])
@pytest.mark.parametrize("changed", [(), ("logits",), ("hidden",), ("logits", "hidden")])
def test_hooks_see_and_change_the_whole_gradient(changed, from_outside):
    models, seen = pair(), []
    for rows in (5, 5, 3):
        given = batch(rows)
        for model in models:
            log = {}

            def hook(gradient, name, log=log):
                log[name] = gradient
                return gradient.clamp(-0.05, 0.05) if name in changed else None

            loss, logits, hidden = model(*given)
            logits.retain_grad()
            logits.register_hook(lambda gradient, hook=hook: hook(gradient, "logits"))
            hidden.register_hook(lambda gradient, hook=hook: hook(gradient, "hidden"))
            total = loss + logits.square().mean() + hidden.mean() if from_outside else loss
            model.zero_grad()
            total.backward()
            seen.append([log, logits.grad, gradients(model)])
        torch.testing.assert_close(seen[-1], seen[-2])
    assert models[1].fallback_reason is None


def test_gradients_without_a_hook_are_the_same_bits():
    _, model = pair()
    given, found = batch(), []
    for retains in (False, True):
        loss, logits, _ = model(*given)
        if retains:
            logits.retain_grad()
        model.zero_grad()
        loss.backward()
        found.append(gradients(model))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_dropout_between_outputs_drops_the_same():
    _, model = pair(0.5)
    for _ in range(3):
        loss, _, hidden = model(*batch())
        hidden.register_hook(torch.zeros_like)
        model.zero_grad()
        loss.backward()
        assert model.head.weight.grad.abs().max() > 0.001
        assert model.fc.weight.grad.abs().max() < 1e-15


def test_several_backwards_and_gradients_of_retained_outputs():
    found = []
    given = batch()
    for model in pair():
        loss, logits, hidden = model(*given)
        logits.retain_grad()
        hidden.retain_grad()
        of_outputs = torch.autograd.grad(loss, [logits, hidden], retain_graph=True)
        loss.backward(retain_graph=True)
        logits.mean().backward()
        found.append([of_outputs, logits.grad, hidden.grad, gradients(model)])
    torch.testing.assert_close(*found)


def test_outputs_may_be_changed_in_place_and_links_may_go():
    found = []
    given = batch()
    for model in pair():
        loss, logits, _ = model(*given)
        handle = logits.register_hook(lambda gradient: gradient * 0)
        handle.remove()
        loss /= 2
        loss.backward()
        found.append(gradients(model))
    torch.testing.assert_close(*found)


class Keeping(torch.nn.Module):
    """A hook keeps what a submodule returns, as Grad-CAM does."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 2)
        self.kept = None

    def forward(self, x):
        self.kept = self.conv(x).relu()
        return self.head(self.kept.mean((2, 3)))


def test_what_forward_has_set_has_its_gradient():
    model = Keeping().double()
    models, found = (model, ORTModule(copy.deepcopy(model))), []
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    for each in models:
        scores = each(x)
        each.kept.retain_grad()
        scores[:, 0].sum().backward()
        found.append([each.kept.grad, gradients(each)])
    torch.testing.assert_close(*found)
