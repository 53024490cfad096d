"""Dropout through ORTModule: repeatable under a seed, the masks' mean and variance, the same mask in backward."""

import math

import pytest
import torch
import zoo

from lowtide.ortmodule import ORTModule

IN_CI = ("gpt2", "bert", "vit")
# resnet has none, mpt's settings do not reach it, and convnext drops branches that its first layer scales of 1e-6 hide.
WITH_DROPOUT = [name for name in zoo.NAMES if name not in ("resnet", "mpt", "convnext")]


def step(wrapped, batch):
    wrapped.zero_grad()
    loss = wrapped(**batch).loss
    loss.backward()
    assert wrapped.fallback_reason is None
    return [loss.detach(), *(p.grad.clone() for p in wrapped.parameters() if p.grad is not None)]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    "name", [name if name in IN_CI else pytest.param(name, marks=pytest.mark.long) for name in WITH_DROPOUT]
)
def test_a_seed_repeats_every_bit(name):
    model, make_batch = zoo.build(name, dropout=0.2)
    wrapped, batch = ORTModule(model), make_batch(batch=8)
    torch.manual_seed(7)
    first, second = step(wrapped, batch), step(wrapped, batch)
    torch.manual_seed(7)
    again = step(wrapped, batch)
    torch.manual_seed(8)
    other = step(wrapped, batch)
    assert same(first, again)
    assert not torch.equal(first[0], second[0]) and not torch.equal(first[0], other[0])


def check_mask(kept, p):
    """Every draw kept with probability 1 - p, and neighbours along each dim independent: within 5 standard errors."""
    kept = kept.double()
    count = kept.numel()
    assert abs(kept.mean().item() - (1 - p)) < 5 * math.sqrt(p * (1 - p) / count)
    centred = kept - (1 - p)
    for dim in range(kept.dim()):
        size = kept.shape[dim]
        if size > 1:
            products = centred.narrow(dim, 0, size - 1) * centred.narrow(dim, 1, size - 1)
            assert abs(products.mean().item()) < 5 * p * (1 - p) / math.sqrt(products.numel()), f"dim {dim}"


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_masks_of_dropout(p):
    class Two(torch.nn.Module):
        def forward(self, x):
            return torch.dropout(x, p, True), torch.dropout(x, p, True)

    wrapped = ORTModule(Two())
    x = torch.ones(64, 1000, requires_grad=True)
    torch.manual_seed(1)
    one, other = wrapped(x)
    later, _ = wrapped(x)
    assert wrapped.fallback_reason is None
    for y in (one, other, later):
        kept = y != 0
        check_mask(kept, p)
        torch.testing.assert_close(y, kept / (1 - p))
        # 1 - p of the mass at 1 / (1 - p): mean 1, variance p / (1 - p).
        assert y.mean().item() == pytest.approx(1, abs=5 * math.sqrt(p / (1 - p) / y.numel()))
        assert y.var().item() == pytest.approx(p / (1 - p), rel=0.05)
    # Two nodes of a step, and two steps, share nothing: as if they were rows of one mask.
    check_mask(torch.stack([one != 0, other != 0, later != 0]), p)
    (one.sum() + 2 * other.sum()).backward()
    torch.testing.assert_close(x.grad, (one + 2 * other).detach())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_masks_of_attention(p, causal):
    """Queries of zero weigh all keys alike, and values of one-hot rows make the weights the output."""
    batch, heads, length = 3, 4, 96

    class Attention(torch.nn.Module):
        def forward(self, q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=causal)

    wrapped = ORTModule(Attention())
    q = torch.zeros(batch, heads, length, length)
    k = torch.randn(batch, heads, length, length)
    v = torch.eye(length).expand(batch, heads, length, length).clone().requires_grad_()
    torch.manual_seed(2)
    y = wrapped(q, k, v)
    assert wrapped.fallback_reason is None
    visible = torch.ones(length, length).tril() if causal else torch.ones(length, length)
    kept = (y != 0).float()
    torch.testing.assert_close(y, kept * visible / visible.sum(1, keepdim=True) / (1 - p))
    if causal:
        rows, columns = torch.tril_indices(length, length)
        check_mask(kept[:, :, rows, columns], p)
    else:
        check_mask(kept, p)
    gradient = torch.randn_like(y)
    y.backward(gradient)
    torch.testing.assert_close(v.grad, y.detach().transpose(2, 3) @ gradient)
