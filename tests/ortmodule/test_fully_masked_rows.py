"""Attention whose mask hides every key of a row by a finite number: softmax gives each of them the same weight."""

import copy

import pytest
import torch
from torch import nn

from lowtide.ortmodule import ORTModule


class Attention(nn.Module):
    def __init__(self, width=16, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x, mask):
        batch, length, width = x.shape

        def split(y):
            return y.view(batch, length, self.heads, -1).transpose(1, 2)

        q, k, v = split(self.q(x)) * 0.5, split(self.k(x)), split(self.v(x))
        weights = nn.functional.softmax(q @ k.transpose(2, 3) + mask, dim=-1)
        return (weights @ v).transpose(1, 2).reshape(batch, length, width)


def padded_causal_mask(batch, length, dtype):
    lowest = torch.finfo(dtype).min
    mask = torch.full((length, length), lowest, dtype=dtype).triu(1).expand(batch, 1, length, length).clone()
    mask[:, :, :, :2] = lowest  # padding: the first rows see nothing else
    return mask


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("length", [7, 16, 300])
def test_gradients_where_a_row_sees_no_key(dtype, length):
    torch.manual_seed(0)
    model = Attention().to(dtype)
    x, mask = torch.randn(3, length, 16, dtype=dtype), padded_causal_mask(3, length, dtype)
    engine = ORTModule(copy.deepcopy(model))
    losses = []
    for each in (model, engine):
        loss = each(x, mask).pow(2).sum()
        loss.backward()
        losses.append(loss.item())
    assert engine.fallback_reason is None
    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    assert losses[1] == pytest.approx(losses[0], rel=tolerance)
    whole = max(each.grad.abs().max() for each in model.parameters())
    for ours, eager in zip(engine.parameters(), model.parameters(), strict=True):
        assert (ours.grad - eager.grad).abs().max() <= tolerance * whole
