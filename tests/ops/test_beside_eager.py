"""Layers whose f32 and 16-bit kernels are other ones than those of f64, through ORTModule beside eager."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lowtide.ortmodule import ORTModule

FINE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}  # of the largest number of a tensor


class Weighted(nn.Module):
    """Cross entropy of images with weights of classes."""

    def __init__(self, **terms):
        super().__init__()
        self.terms = terms
        self.register_buffer("weights", torch.linspace(0.5, 1.5, 7))

    def forward(self, x):
        labels = torch.arange(x.numel() // 7).view(2, 33, 40) % 7
        labels = labels.masked_fill(labels == 3, -100)
        return F.cross_entropy(x, labels, weight=self.weights.to(x.dtype), **self.terms)


class Planes(nn.Module):
    """Along axes that are not the last one."""

    def forward(self, x):
        return x.softmax(1) * 2 + x.log_softmax(0) + x.cumsum(1).flip(0).tril()


class Windows(nn.Module):
    """Attention in windows with a learnt bias whose heads lie last in memory, as Swin and T5 have it."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(49 * 49, 4))

    def forward(self, x):
        q, k, v = x.unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        bias = self.bias.view(49, 49, 4).permute(2, 0, 1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.unsqueeze(0))


CASES = {
    "places": (lambda: nn.Conv2d(37, 50, 1), (3, 37, 9, 8)),
    "places, strides": (lambda: nn.Conv2d(37, 50, 1, (2, 3), bias=False), (2, 37, 11, 5)),
    "a window a channel": (lambda: nn.Conv2d(37, 37, 5, (2, 1), 2, groups=37), (9, 37, 11, 30)),
    "mean of labels": (lambda: Weighted(reduction="mean", label_smoothing=0.1), (2, 7, 33, 40)),
    "sum of labels": (lambda: Weighted(reduction="sum"), (2, 7, 33, 40)),
    "each label": (lambda: Weighted(reduction="none", label_smoothing=0.1), (2, 7, 33, 40)),
    "planes": (Planes, (4, 50, 700)),
    "windows": (Windows, (6, 49, 96)),
}


@pytest.mark.parametrize("dtype", FINE, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients(case, dtype):
    build, sizes = CASES[case]
    torch.manual_seed(0)
    module = build().to(dtype)
    engine = ORTModule(copy.deepcopy(module))
    x = torch.randn(sizes).to(dtype)
    found = []
    for each in (module, engine):
        leaf = x.clone().requires_grad_()
        output = each(leaf)
        output.backward(torch.ones_like(output))
        found.append([output, leaf.grad, *(parameter.grad for parameter in each.parameters())])
    assert engine.fallback_reason is None
    for theirs, ours in zip(*found, strict=True):
        limit = FINE[dtype] * theirs.double().abs().max().item()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=limit)


def test_a_bias_for_all_windows_is_put_in_order_once():
    engine = ORTModule(Windows())
    engine(torch.randn(6, 49, 96)).sum().backward()
    steps = engine.text("program")
    assert steps.count('"Copy for Attention (') == 1 and steps.count('"Copy for AttentionGrad,') == 1
