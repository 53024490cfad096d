"""Max pools of images keep a byte for each output: gradients as eager's, in fewer bytes than PyTorch's indices take."""

import pytest
import torch
from torch import nn

from lowtide.ortmodule import ORTModule


def small_vgg(**pool):
    layers, channels = [], 3
    for width in (8, 16, 16):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, **pool)]
        channels = width
    return nn.Sequential(*layers, nn.Conv2d(channels, 4, 1))


def step(module, x):
    x = x.clone().requires_grad_()
    loss = module(x).square().mean()
    loss.backward()
    return [loss.detach(), x.grad, *(parameter.grad for parameter in module.parameters())]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("pool", [{}, {"stride": 1, "padding": 1, "ceil_mode": True}])
def test_gradients_are_eagers(dtype, channels_last, pool):
    torch.manual_seed(0)
    eager = small_vgg(**pool).to(dtype)
    x = torch.randn(2, 3, 17, 18).to(dtype)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    ours = ORTModule(small_vgg(**pool).to(dtype))
    ours.load_state_dict(eager.state_dict())
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 5e-2}[dtype]
    for found, expected in zip(step(ours, x), step(eager, x), strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * expected.abs().max().item())
    text = ours._last_agent().session.training_text()
    assert text.count("offsets=true") == 3
    assert "i64[" not in text.split("MaxPool(", 1)[1].splitlines()[0]


def test_indices_that_forward_returns_are_pytorchs():
    torch.manual_seed(0)

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.pool = nn.Conv2d(3, 4, 3), nn.MaxPool2d(2, return_indices=True)

        def forward(self, x):
            y, indices = self.pool(self.conv(x))
            return y.sum(), indices

    eager = Module()
    ours = ORTModule(Module())
    ours.load_state_dict(eager.state_dict())
    x = torch.randn(2, 3, 9, 9)
    (loss, found), (_, expected) = ours(x), eager(x)
    loss.backward()
    assert found.dtype == torch.int64
    assert torch.equal(found, expected)
