"""Forward that takes the state of PyTorch's generator draws the same numbers again later, in a hook perhaps, as losses
with cached gradients do (sentence-transformers): PyTorch runs all of it. (Pieces drew other masks than the hook.)"""

import copy

import pytest
import torch

from lowtide.ortmodule import ORTModule


class Cached(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 8))

    def forward(self, x):
        state = torch.get_rng_state()
        with torch.no_grad():
            embedded = self.layers(x)
        embedded.requires_grad_()
        loss = embedded.square().sum()
        (gradient,) = torch.autograd.grad(loss, embedded)
        loss = loss.detach().requires_grad_()

        def again(outer):
            with torch.enable_grad(), torch.random.fork_rng(devices=[]):
                torch.set_rng_state(state)
                ((self.layers(x) * gradient).sum() * outer).backward()

        loss.register_hook(again)
        return loss


@pytest.mark.usefixtures("with_pieces")
@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_cached_gradients():
    model = Cached().double()
    models, x = (model, ORTModule(copy.deepcopy(model))), torch.randn(4, 8, dtype=torch.float64)
    for _ in range(3):
        found, seed = [], torch.seed()
        for each in models:
            torch.manual_seed(seed)
            each.zero_grad()
            loss = each(x)
            loss.backward()
            found.append([loss.detach(), [parameter.grad for parameter in each.parameters()]])
        torch.testing.assert_close(*found)
        assert "get_rng_state" in models[1].fallback_reason


class Seeded(torch.nn.Module):
    """A projection that is drawn again in each call, the same one."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        h = self.layer(x)
        torch.manual_seed(3)
        return torch.nn.functional.dropout(h @ torch.randn(8, 4, dtype=h.dtype), 0.5)


@pytest.mark.usefixtures("with_pieces")
@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_what_forward_seeds_is_what_pytorch_draws():
    """A piece behind the seed drew the engine's numbers: another projection than a checkpoint was trained with."""
    model, x = Seeded().double(), torch.randn(4, 8, dtype=torch.float64)
    wrapped = ORTModule(copy.deepcopy(model))
    for _ in range(2):
        torch.testing.assert_close(wrapped(x), model(x))
        assert "manual_seed" in wrapped.fallback_reason
