"""An output that was overwritten, beside a loss: what led to it before has a gradient of zeros in eager, where the loss
has read it, and none where the loss has not. With the output beside it, the engine gave none either way."""

import pytest
import torch
from modules import of

from lowtide.ortmodule import DebugOptions, ORTModule


def _zeroed(m, x):
    h = m.l(x) * m.scale
    h.zero_()
    return h.pow(2).mean() + (x * m.other).sum(), h


def _filled(m, x):
    h = x * m.scale
    h.fill_(2.0)
    return h.mean() + m.l(x).mean(), h


def _copied(m, x):
    h = x * m.scale
    h[:] = m.l(x)
    return h.mean(), h * m.other


def _not_read(m, x):
    h = x * m.scale
    h.zero_()
    return m.l(x).mean(), h


def _without_slope(m, x):
    h = (x * m.scale).round()
    return h.mean() + m.l(x).mean(), h * m.other


@pytest.mark.parametrize("forward", [_zeroed, _filled, _copied, _not_read, _without_slope])
@pytest.mark.parametrize("place", [0, 1])
def test_have_the_gradients_of_eager(forward, place):
    found = []
    for wrap in (lambda net: net, lambda net: ORTModule(net, DebugOptions())):
        net = of(forward)
        net.scale, net.other = (torch.nn.Parameter(torch.ones(4, dtype=torch.float64)) for _ in range(2))
        outputs = wrap(net)(torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
        outputs[place].sum().backward()
        found.append([parameter.grad for parameter in net.parameters()])
    for ours, expected in zip(*found, strict=True):
        assert (ours is None) == (expected is None)
        if expected is not None:
            torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)
