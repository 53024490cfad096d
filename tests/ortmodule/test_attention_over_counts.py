"""Attention over rows padded to as many as data says (torch_geometric's to_dense_batch), under masks: PyTorch's C++
compares the mask's rows with a query's. One graph; these were pieces."""

import copy

import pytest
import torch
from torch import nn

from lowtide.ortmodule import ORTModule


class Graphs(nn.Module):
    """Nodes of several graphs, by their labels, attend to those of their own."""

    def __init__(self):
        super().__init__()
        self.embed, self.attention = nn.Linear(3, 8), nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, labels):
        x, graphs = self.embed(x), int(labels.max()) + 1
        counts = labels.new_zeros(graphs).scatter_add_(0, labels, torch.ones_like(labels))
        most = int(counts.max())
        first = counts.cumsum(0) - counts
        places = torch.arange(len(labels)) - first[labels] + labels * most
        dense = x.new_zeros(graphs * most, 8).index_copy(0, places, x).view(graphs, most, 8)
        mask = torch.zeros(graphs * most, dtype=torch.bool).index_fill(0, places, True).view(graphs, most)
        return x + self.attend(dense, mask)[mask]

    def attend(self, dense, mask):
        return self.attention(dense, dense, dense, key_padding_mask=~mask, need_weights=False)[0]


class Scaled(Graphs):
    def attend(self, dense, mask):
        query = dense[:, None]
        return nn.functional.scaled_dot_product_attention(query, query, query, mask[:, None, None])[:, 0]


CALLS = ([0, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2, 2, 2], [0, 0, 0, 0, 1])
RARE = ([0, 1, 2], [0, 0, 0])  # graphs of one node, and one graph


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
@pytest.mark.parametrize("make", [Graphs, Scaled])
def test_one_graph_with_eagers_outputs_and_gradients(make):
    torch.manual_seed(0)
    eager = make().double()
    ours = ORTModule(copy.deepcopy(eager))
    for labels in (*CALLS, *RARE, *CALLS):
        x, found = torch.randn(len(labels), 3, dtype=torch.float64), []
        for module in (ours, eager):
            module.zero_grad()
            output = module(x, torch.tensor(labels))
            output.square().sum().backward()
            found.append([output.detach(), *(parameter.grad for parameter in module.parameters())])
        torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)
        assert labels in RARE or ours.fallback_reason is None
