"""Noise between numbers that tensors hold: transformers' NEFTune draws between -bound and bound, tensors that it
computes of sizes, for which PyTorch asks `item()` (pieces, and a first step three times as long); and noise whose scale
is annealed, which was a graph for each scale."""

import pytest
import torch

from lowtide.ortmodule import ORTModule


class Noisy(torch.nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4000))
        self.draw, self.scale = draw, 1.0

    def forward(self, x, scale):
        noise = self.draw(self, torch.zeros_like(x), scale)
        return (self.weight * noise).sum(), noise


def _moments(noise):
    return torch.stack([noise.min(), noise.max(), noise.mean(), noise.std()])


def _neftune(module, noise, scale):
    dims = torch.tensor(noise.shape[0])
    bound = scale.item() * 60.0 / torch.sqrt(dims)
    return noise.uniform_(-bound, bound)


DRAWS = {
    "neftune": _neftune,
    "uniform": lambda module, noise, scale: noise.uniform_(-scale, 2 * scale),
    "uniform to": lambda module, noise, scale: noise.uniform_(to=scale),
    "uniform items": lambda module, noise, scale: noise.uniform_(-scale.item(), scale.item()),
    "normal": lambda module, noise, scale: noise.normal_(scale, std=scale),
    "normal number": lambda module, noise, scale: noise.normal_(0, scale),
    "held uniform": lambda module, noise, scale: noise.uniform_(-module.scale, module.scale),
    "held normal": lambda module, noise, scale: noise.normal_(0, module.scale),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_one_graph(draw):
    model = Noisy(DRAWS[draw])
    wrapped = ORTModule(model)
    for step in range(5):
        scale, x = torch.tensor(1.0 + step), torch.zeros(4000)
        model.scale = scale.item()
        model.weight.grad = None
        loss, noise = wrapped(x, scale)
        loss.backward()
        torch.testing.assert_close(model.weight.grad, noise)
        torch.testing.assert_close(
            _moments(noise), _moments(model(x, scale)[1]), rtol=0.1, atol=0.2 * scale.item() + 0.5
        )
        assert wrapped.fallback_reason is None
    assert sum(wrapped.transition_counts()["in training mode"].values()) <= 2
    torch.manual_seed(0)
    first = wrapped(x, scale)[1]
    assert not torch.equal(first, wrapped(x, scale)[1])
    torch.manual_seed(0)
    assert torch.equal(first, wrapped(x, scale)[1])


def test_what_pytorch_refuses_is_its_error():
    wrapped, x = ORTModule(Noisy(DRAWS["uniform"])), torch.zeros(4000)
    wrapped(x, torch.tensor(1.0))[0].backward()
    with pytest.raises(RuntimeError, match="uniform_ expects"):
        wrapped(x, torch.tensor(-1.0))
