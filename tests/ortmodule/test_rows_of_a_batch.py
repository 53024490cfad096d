"""As many rows of each item of a batch are chosen by a mask (VideoMAE): counts that a batch divides."""

import copy

import pytest
import torch
from counted import assert_one_graph
from modules import Of

from lowtide.ortmodule import ORTModule


def chosen(m, x, mask):
    """The mask is inverted twice: two counts, of which neither step knows that they are the same."""
    batch, _, width = x.shape
    kept = m.l(x)[~mask].reshape(batch, -1, width)
    places = x.cumsum(1)
    kept = kept * places[~mask].reshape(batch, -1, width)
    return torch.cat([kept, m.l.bias + places[mask].reshape(batch, -1, width)], 1).sin()


def given(batch, length, masked):
    x = torch.randn(batch, length, 4, generator=torch.Generator().manual_seed(batch), dtype=torch.float64)
    mask = torch.zeros(batch, length, dtype=torch.bool)
    for row in range(batch):
        mask[row, torch.randperm(length, generator=torch.Generator().manual_seed(row))[:masked]] = True
    return x.requires_grad_(), mask


def test_one_graph_for_all_counts():
    sizes = ((3, 6, 2), (2, 6, 4), (3, 8, 1), (5, 7, 6), (3, 6, 2))
    assert_one_graph(Of(chosen).double(), [given(*each) for each in sizes])


def test_counts_that_a_batch_does_not_divide_are_pytorchs_error():
    module = Of(chosen).double()
    wrapped = ORTModule(copy.deepcopy(module))
    wrapped(*given(3, 6, 2))
    x, mask = given(3, 6, 2)
    mask[0] = True
    for one in (module, wrapped):
        with pytest.raises(RuntimeError, match="invalid for input of size"):
            one(x, mask)


def test_forwards_that_wait_have_their_own_counts():
    module = Of(chosen).double()
    wrapped = ORTModule(copy.deepcopy(module))
    calls = [given(3, 6, masked) for masked in (1, 4, 2)]
    for outputs in ([module(*call) for call in calls], [wrapped(*call) for call in calls]):
        for output in reversed(outputs):
            (output**2).sum().backward()
    torch.testing.assert_close(wrapped.l.weight.grad, module.l.weight.grad, rtol=1e-10, atol=1e-12)
    assert wrapped.fallback_reason is None


def test_attention_over_them():
    def attend(m, x, mask):
        kept = m.l(x)[~mask].reshape(x.shape[0], 1, -1, x.shape[2])
        causal = kept.shape[2] > 1 and m.causal  # as transformers asks, of whatever attention
        return torch.nn.functional.scaled_dot_product_attention(kept, kept.sin(), kept, is_causal=causal)

    module = Of(attend).double()
    module.causal = False
    assert_one_graph(module, [given(*each) for each in ((3, 6, 2), (2, 6, 4), (5, 7, 3))])
