"""A flag that a function takes as a bool, found by a size: transformers' attention asks `length > 1 and is_causal`."""

import pytest
import torch

from lowtide.ortmodule import DebugOptions, ORTModule


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(8, 8)

    def forward(self, x):
        q = self.project(x).unflatten(2, (2, 4)).transpose(1, 2)
        is_causal = q.shape[2] > 1 and True
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=is_causal).square().sum()


@pytest.mark.parametrize("lengths", [(1, 5, 1), (5, 1, 6)])
def test_causal_where_there_is_more_than_one_row(lengths):
    torch.manual_seed(0)
    eager = Attention().double()
    ours = ORTModule(eager, DebugOptions())
    for batch, length in zip((2, 3, 3), lengths, strict=True):
        x = torch.randn(batch, length, 8, dtype=torch.float64)
        eager.zero_grad()
        expected = eager(x)
        expected.backward()
        grads = [parameter.grad.clone() for parameter in eager.parameters()]
        eager.zero_grad()
        loss = ours(x)
        assert ours.fallback_reason is None
        loss.backward()
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close([parameter.grad for parameter in eager.parameters()], grads)
