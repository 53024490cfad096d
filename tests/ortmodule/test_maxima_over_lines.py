"""F.max_pool1d, of which PyTorch's own decomposition wants plain numbers for sizes: one graph serves all lengths."""

import pytest
import torch
from counted import assert_one_graph

from lowtide.ortmodule import ORTModule

F = torch.nn.functional
CALLS = {
    "a layer": torch.nn.MaxPool1d(3, padding=1),
    "a layer that dilates": torch.nn.MaxPool1d((2,), stride=(3,), dilation=2, ceil_mode=True),
    "with indices": lambda x: F.max_pool1d(x, 2, return_indices=True),
    "without a batch": lambda x: F.max_pool1d(x[0], 4, 2),
    "a function": lambda x: torch.max_pool1d(x, [3], [2]),
}


class Pool(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.weight, self.call = torch.nn.Parameter(torch.randn(3, 1)), call

    def forward(self, x):
        return self.call(x * self.weight)


@pytest.mark.parametrize("name", CALLS)
def test_one_graph_for_all_lengths(name):
    sizes = ((2, 17), (3, 24), (2, 33))
    assert_one_graph(
        Pool(CALLS[name]).double(),
        [(torch.randn(batch, 3, length, dtype=torch.float64, requires_grad=True),) for batch, length in sizes],
    )


@pytest.mark.parametrize("arguments", [([3, 3],), (0,), (2, 1, 5)])
def test_what_pytorch_refuses_it_refuses(arguments):
    x = torch.randn(2, 3, 8)
    with pytest.raises(RuntimeError) as ours:
        ORTModule(Pool(lambda x: F.max_pool1d(x, *arguments)))(x)
    with pytest.raises(RuntimeError) as theirs:
        F.max_pool1d(x, *arguments)
    assert str(ours.value) == str(theirs.value)
