"""NumPy's functions of sizes (Informer keeps `np.ceil(np.log(length))` keys) want plain numbers: a graph each."""

import copy

import numpy
import torch
from modules import Of

from lowtide.ortmodule import ORTModule


def forward(m, a):
    kept = 2 * numpy.ceil(numpy.log(a.shape[1])).astype("int").item()
    return m.l(a)[:, :kept].sum(1)


def test_each_length_is_a_graph():
    module = Of(forward).double()
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    for length in (9, 9, 30, 9):
        a = torch.randn(2, length, 4, dtype=torch.float64)
        for each in (eager, wrapped):
            each.zero_grad()
            each(a).square().sum().backward()
        torch.testing.assert_close(wrapped(a), eager(a))
        torch.testing.assert_close([p.grad for p in wrapped.parameters()], [p.grad for p in eager.parameters()])
        assert wrapped.fallback_reason is None
