"""Convolutions whose strides, pads, dilations or groups are sizes: StyleGAN has as many groups as rows. PyTorch's
kernel runs them, whatever the sizes; lowtide took it for a bug of its own that they are no numbers."""

import pytest
import torch
from modules import check
from torch.nn.functional import conv1d, conv_transpose1d

CALLS = {
    "strides": lambda x, w: conv1d(x, w, stride=x.shape[-1] // 4),
    "pads": lambda x, w: conv1d(x, w, padding=x.shape[-1] // 4),
    "dilations": lambda x, w: conv1d(x, w, padding="same", dilation=x.shape[-1] // 8),
    "groups": lambda x, w: conv1d(x.reshape(1, -1, x.shape[-1]), w.repeat(x.shape[0], 1, 1), groups=x.shape[0]),
    "transposed pads": lambda x, w: conv_transpose1d(x, w, padding=x.shape[-1] // 8),
    "transposed groups": lambda x, w: conv_transpose1d(
        x.reshape(1, -1, x.shape[-1]), w.repeat(x.shape[0], 1, 1), groups=x.shape[0]
    ),
}


class Windows(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.weight, self.call = torch.nn.Parameter(torch.randn(3, 3, 3)), call

    def forward(self, x):
        return self.call(x * self.weight.mean(), self.weight).sin().sum()


@pytest.mark.parametrize("name", CALLS)
def test_one_graph_for_all_sizes(name):
    module = Windows(CALLS[name]).double()
    wrapped = check(module, torch.randn(2, 3, 16, dtype=torch.float64), steps=1)
    for shape in ((3, 3, 24), (4, 3, 32)):
        x = torch.randn(shape, dtype=torch.float64)
        torch.testing.assert_close(wrapped(x), module(x))
        assert wrapped.fallback_reason is None
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1}}
