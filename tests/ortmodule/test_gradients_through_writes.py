"""torch.autograd.grad inside of forward, through calls that write in place. They run again, and what they write into
was read once more after it was written: an energy of messages, `zeros.scatter_add_(…)`, was counted twice."""

import pytest
import torch
from doors import DOORS, compare
from modules import Of

pytestmark = pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")

_PLACES = torch.tensor([0, 2, 2])


def _messages(m, h):
    return h.new_zeros(h.shape).scatter_add_(0, _PLACES[:, None].expand_as(h), h)


def _rows(m, h):
    return torch.zeros_like(h).index_add_(0, _PLACES, h).index_add_(0, _PLACES, h * h)


def _onto_others(m, h):
    return (m.l.weight[:3] * 1).add_(h).mul_(h)


def _largest(m, h):
    return h.new_zeros(h.shape).scatter_reduce_(0, _PLACES[:, None].expand_as(h), h, "amax")


def _put(m, h):
    return torch.ones_like(h).index_put_((_PLACES,), h, accumulate=True)


def _written_before(m, h):
    return h.new_ones(h.shape).add_(m.l.bias) * h


def _filled(m, h):
    return torch.zeros_like(h).fill_(3).addcmul_(h, h).masked_fill_(h > 0.3, 2)


def _promoted(m, h):
    return h.new_zeros(h.shape, dtype=torch.float32).add_(h.sign()).double() * h


def _read_before(m, h):
    zeros = h.new_ones(h.shape)
    first = zeros * 2
    return zeros.mul_(h) * first


def _columns(m, h):
    zeros = h.new_zeros(h.shape)
    zeros[:, 1] = h[:, 0].exp()
    return zeros * h


ONE_GRAPH = [_messages, _rows, _onto_others, _largest, _put, _written_before, _filled]


@pytest.mark.parametrize("writes", [*ONE_GRAPH, _promoted, _read_before, _columns])
@pytest.mark.parametrize("door", DOORS)
def test_slopes_and_what_they_are_of_are_eagers(door, writes):
    def forward(m, a):
        a = a.detach().requires_grad_()
        energy = writes(m, m.l(a).sin()).square().sum()
        (slope,) = torch.autograd.grad(energy, a, create_graph=True)
        return energy, slope

    ours = compare(door, Of(forward).double(), lambda index: [torch.randn(3, 4, dtype=torch.float64)])
    assert door != "ORTModule" or writes not in ONE_GRAPH or ours.fallback_reason is None
