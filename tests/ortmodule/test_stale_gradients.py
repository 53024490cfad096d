"""A gradient that waits for zero_grad() has the size that its parameter had: `weight.data = larger`."""

import copy

import pytest
import torch

from lowtide.ortmodule import ORTModule


class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 3)

    def forward(self, ids):
        return self.head(self.embed(ids)).logsumexp(-1).mean()


def step(module, wrapped, size):
    """Nothing of it may stay: the graph of a loss remembers the sizes of parameters, in eager too."""
    if module.embed.num_embeddings != size:
        module.embed.weight.data = torch.linspace(-1, 1, size * 4, dtype=torch.float64).reshape(size, 4)
        module.embed.num_embeddings = size
    loss = wrapped(torch.arange(size)[None])
    module.zero_grad()
    loss.backward()
    return [loss.item(), *(parameter.grad.clone() for parameter in module.parameters())]


def test_a_parameter_that_grew_is_in_the_graph_before_its_gradient_is_gone():
    torch.manual_seed(0)
    module = Tagger().double()
    theirs = copy.deepcopy(module)
    wrapped = ORTModule(module)
    for size in (5, 5, 7, 7):
        torch.testing.assert_close(step(module, wrapped, size), step(theirs, theirs, size))
    assert wrapped.fallback_reason is None


def test_the_gradient_stays_until_then():
    module = Tagger().double()
    wrapped = ORTModule(module)
    wrapped(torch.arange(5)[None]).backward()
    before, module.embed.weight.data = module.embed.weight.grad, torch.ones(7, 4, dtype=torch.float64)
    loss = wrapped(torch.arange(7)[None])
    assert module.embed.weight.grad is before and module.embed.weight.shape == (7, 4)
    with pytest.raises(RuntimeError, match="size"):
        loss.backward()
