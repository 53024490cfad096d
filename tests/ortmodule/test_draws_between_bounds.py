"""Tensor.random_ of two bounds: the exporter's code of a graph has its name, random_.from, which Python does not read.
The reason why PyTorch ran the model was "SyntaxError: invalid syntax"."""

import pytest
import torch
from modules import Of

from lowtide.ortmodule import ORTModule


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_draws_are_in_the_graph(dtype):
    def forward(m, a):
        drawn = torch.empty(a.shape[0], 200, dtype=dtype).random_(-2, 3)
        return m.l(a).sum() * drawn.sum(), drawn

    wrapped = ORTModule(Of(forward))
    seen = set()
    for rows in (3, 3, 5):
        loss, drawn = wrapped(torch.randn(rows, 4))
        loss.backward()
        assert wrapped.fallback_reason is None
        assert drawn.shape == (rows, 200) and drawn.dtype == dtype and set(drawn.unique().tolist()) == {-2, -1, 0, 1, 2}
        seen.add(tuple(drawn[0].tolist()))
    assert len(seen) == 3


def test_a_generator_of_ones_own_is_drawn_from():
    generator = torch.Generator()
    module = Of(lambda m, a: m.l(a) * torch.empty(a.shape[0], 4).random_(0, 9, generator=generator))
    wrapped, a = ORTModule(module), torch.randn(3, 4)
    results = [call(a) for call in (wrapped, module) if generator.manual_seed(7)]
    torch.testing.assert_close(*results)
    assert "SyntaxError" not in (wrapped.fallback_reason or "")
