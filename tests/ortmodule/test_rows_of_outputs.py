"""What a convolution makes lies channels last inside; outputs lie as eager's do."""

import copy

import pytest
import torch
from torch import nn

from lowtide.ortmodule import ORTModule


class Twice(nn.Module):
    """The same features as they are, turned, flat, and read again in backward."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 2, 1)

    def forward(self, x):
        y = torch.relu(self.conv(x))
        return y, y.permute(0, 2, 3, 1), y.flatten(2), self.head(y), y


MODULES = {
    "features": (lambda: nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU()), (2, 3, 9, 8)),
    "a convolution": (lambda: nn.Conv2d(3, 16, 3), (2, 3, 9, 8)),
    "a pool": (lambda: nn.Sequential(nn.Conv2d(3, 16, 3), nn.MaxPool2d(2)), (2, 3, 9, 8)),
    "lines": (lambda: nn.Sequential(nn.Conv1d(512, 512, 3), nn.GELU()), (2, 512, 9)),
    "a convolution of lines": (lambda: nn.Conv1d(512, 512, 3), (2, 512, 9)),
    "several": (Twice, (2, 3, 9, 8)),
}


def outputs_of(module, x):
    found = module(x)
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("name", MODULES)
def test_outputs_lie_as_in_eager(name):
    make, shape = MODULES[name]
    torch.manual_seed(0)
    module = make()
    engine = ORTModule(copy.deepcopy(module))
    for batch in (2, 3):
        x = torch.randn(batch, *shape[1:])
        found, wanted = outputs_of(engine, x), outputs_of(module, x)
        for one, other in zip(found, wanted, strict=True):
            assert one.stride() == other.stride()
            torch.testing.assert_close(one, other)
        found[0].view(batch, -1).square().sum().backward()
        wanted[0].view(batch, -1).square().sum().backward()
        for one, other in zip(engine.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
    assert engine.fallback_reason is None


def test_who_gives_images_channels_last_gets_them_so():
    module = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU()).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 9, 8).to(memory_format=torch.channels_last)
    assert ORTModule(copy.deepcopy(module))(x).stride() == module(x).stride()
