"""A count from data that forward checks to be a power of two for each row of the batch: PyTorch's bound of the rows is
rounded then, and it stumbles over it where a size may be any number."""

import pytest
import torch
from counted import assert_one_graph

_IMAGE = 7


class Placed(torch.nn.Module):
    """Puts features in the places of images among the tokens, as models of images and text do."""

    def __init__(self, count):
        super().__init__()
        self.embedding, self.l = torch.nn.Embedding(8, 4), torch.nn.Linear(4 * count, 4 * count)

    def forward(self, ids, features):
        h = self.embedding(ids)
        mask, rows = (ids == _IMAGE).unsqueeze(-1).expand_as(h), self.l(features).reshape(-1, 4)
        torch._check(h[mask].numel() == rows.numel(), lambda: "as many features as there are places for")
        return h.masked_scatter(mask, rows)


@pytest.mark.parametrize("count", [4, 3])
def test_one_graph_for_all_batches(count):
    def call(batch, columns):
        ids = torch.randint(_IMAGE, (batch, columns), generator=torch.Generator().manual_seed(batch))
        ids[:, 1 : 1 + count] = _IMAGE
        return ids, torch.randn(batch, 4 * count, dtype=torch.float64, requires_grad=True)

    assert_one_graph(Placed(count).double(), [call(2, 9), call(3, 12), call(5, 10)])
