"""A count of tokens that item() reads, and is compared with a count of features (Qwen2-Audio)."""

import pytest
import torch
from counted import assert_one_graph
from modules import Of

FEATURE = 7


def put(m, tokens, x, lengths):
    features = m.l(x)[torch.arange(x.shape[1]) < lengths[:, None]]
    count = (tokens == FEATURE).sum().item()
    torch._check(count == features.shape[0], lambda: "features and tokens do not match")
    return m.e(tokens).masked_scatter((tokens == FEATURE)[..., None], features)


def given(batch, length, lengths):
    generator = torch.Generator().manual_seed(batch)
    tokens = torch.zeros(batch, length, dtype=torch.int64)
    for row, count in enumerate(lengths):
        tokens[row, 1 : 1 + count] = FEATURE
    x = torch.randn(batch, 4, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    return tokens, x, torch.tensor(lengths)


def test_one_graph_for_all_counts():
    calls = [given(2, 6, (3, 1)), given(3, 6, (3, 1, 2)), given(2, 8, (1, 0)), given(2, 8, (4, 4))]
    module = Of(put, e=torch.nn.Embedding(9, 4)).double()
    wrapped = assert_one_graph(module, calls)
    tokens, *others = given(2, 8, (1, 2))
    tokens[0, 0] = FEATURE
    for one in (module, wrapped):
        with pytest.raises(RuntimeError, match="do not match"):
            one(tokens, *others)
