"""Autoencoders of masked patches: what a mask leaves of each row is as much in all rows, and is a sequence again."""

import pytest
import torch
from counted import assert_one_graph
from modules import Of

PATCHES, WIDTH = 12, 4


def attended(m, x):
    """Asked twice whether there is more than one query: the second answer was a branch on data, as PyTorch's exporter
    gave it without a question."""
    is_causal = x.shape[1] > 1
    return torch.nn.functional.scaled_dot_product_attention(m.l(x), x, x, is_causal=is_causal)


def reconstructed(m, x, mask):
    batch, _, width = x.shape
    seen = x[~mask].reshape(batch, -1, width)
    for _ in range(2):
        seen = attended(m, seen)
    hidden = m.token + m.places.expand(batch, -1, -1)[mask].reshape(batch, -1, width)
    decoded = attended(m, torch.cat([seen, hidden], dim=1))[:, -hidden.shape[1] :]
    return (decoded - x[mask].reshape(batch, -1, width)).square().mean()


def rerolled(m, x, mask):
    """As Hiera has what is left of an image in windows of windows: each view divides the count again."""
    batch, _, width = x.shape
    seen = x[mask].view(batch, -1, width)
    length, window = seen.shape[1], [1, 1]
    for _ in range(2):
        seen = seen.view(batch, 2, 2, length // 4, *window, width).permute(0, 3, 1, 4, 2, 5, 6)
        window = [size * 2 for size in window]
        seen = seen.reshape(batch, -1, *window, width)
        length = seen.shape[1]
    return m.l(seen.view(batch, length, *window, width).flatten(1, 3)).cumsum(1).square().mean()


def given(batch, hidden, patches=PATCHES):
    generator = torch.Generator().manual_seed(hidden)
    mask = torch.zeros(batch, patches, dtype=torch.bool)
    for row in mask:
        row[torch.randperm(patches, generator=generator)[:hidden]] = True
    return torch.randn(batch, patches, WIDTH, generator=generator, dtype=torch.float64, requires_grad=True), mask


def test_one_graph_for_all_masks():
    module = Of(reconstructed).double()
    module.token = torch.nn.Parameter(torch.randn(1, 1, WIDTH, dtype=torch.float64))
    module.places = torch.nn.Parameter(torch.randn(1, PATCHES, WIDTH, dtype=torch.float64))
    calls = [given(2, 8), given(3, 8), given(2, 4), given(4, 9)]
    wrapped = assert_one_graph(module, calls)
    x, mask = given(2, 8)
    mask[0] = ~mask[0]  # 4 and 8
    mask[1, mask[1].nonzero()[0]] = False
    for one in (module, wrapped):
        with pytest.raises(RuntimeError, match="shape"):
            one(x, mask)


def test_one_graph_where_counts_are_divided():
    module = Of(rerolled).double()
    wrapped = assert_one_graph(module, [given(2, 32, 64), given(3, 48, 64), given(2, 32, 80)])
    arguments = given(2, 30, 64)  # no multiple of 16
    for one in (module, wrapped):
        with pytest.raises(RuntimeError, match="invalid for input of size"):
            one(*arguments)
    # One window is as good as none to the graph: PyTorch runs that call.
    arguments = given(2, 16, 64)
    torch.testing.assert_close(wrapped(*arguments), module(*arguments), rtol=1e-9, atol=0)
    assert "size" in wrapped.fallback_reason
