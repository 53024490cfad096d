"""Distributions of torch.distributions among the outputs: policies and encoders return them."""

import copy

import pytest
import torch
from torch import distributions as d

from lowtide.ortmodule import ORTModule


class Policy(torch.nn.Module):
    def __init__(self, make):
        super().__init__()
        self.body = torch.nn.Linear(4, 6, dtype=torch.float64)
        self.make = make

    def forward(self, x):
        h = self.body(x)
        return self.make(h), h.mean(-1)


def mixture(h):
    parts = d.Normal(h[:, :3], torch.ones_like(h[:, :3]))
    return d.MixtureSameFamily(d.Categorical(logits=h[:, 3:]), parts)


MAKES = {
    "categorical": lambda h: d.Categorical(logits=h),
    "of probabilities": lambda h: d.Categorical(h.softmax(-1)),
    "normal": lambda h: d.Normal(h, h.exp()),
    "independent": lambda h: d.Independent(d.Normal(h, h.exp()), 1),
    "bernoulli": lambda h: d.Bernoulli(logits=h),
    "beta": lambda h: d.Beta(h.exp(), h.exp() + 1),
    "many normals": lambda h: d.MultivariateNormal(h, scale_tril=torch.eye(6, dtype=h.dtype) * h.exp()[..., None]),
    "mixture": mixture,
}


@pytest.mark.parametrize("name", MAKES)
def test_a_distribution_is_an_output(name):
    module = Policy(MAKES[name])
    wrapped = ORTModule(copy.deepcopy(module))
    for batch in (3, 5, 2):
        x = torch.randn(batch, 4, dtype=torch.float64)
        with torch.no_grad():
            (ours, _), (theirs, _) = wrapped(x), module(x)
            torch.manual_seed(batch)
            action = theirs.sample()
            torch.manual_seed(batch)
            torch.testing.assert_close(ours.sample(), action)
        for model in (module, wrapped):
            model.zero_grad()
            found, value = model(x)
            assert repr(type(found)) == repr(type(theirs)) and found.batch_shape == theirs.batch_shape
            (-found.log_prob(action).sum() + value.square().sum()).backward()
            assert wrapped.fallback_reason is None
        torch.testing.assert_close([p.grad for p in wrapped.parameters()], [p.grad for p in module.parameters()])
    counts = wrapped.transition_counts()
    assert all(sum(modes.values()) == 1 for modes in counts.values())


def test_divergence_from_another_call_and_entropy():
    module = Policy(MAKES["categorical"])
    wrapped, x = ORTModule(copy.deepcopy(module)), torch.randn(3, 4, dtype=torch.float64)
    for model in (module, wrapped):
        with torch.no_grad():
            before, _ = model(x + 1)
        now, _ = model(x)
        (d.kl_divergence(now, before) - now.entropy()).sum().backward()
    torch.testing.assert_close([p.grad for p in wrapped.parameters()], [p.grad for p in module.parameters()])
