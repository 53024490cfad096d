"""arange and linspace hold PyTorch's bits, whatever they are rounded to: indices are made of them."""

import pytest
import torch

from lowtide.ortmodule import ORTModule


class Rows(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.scale, self.dtype = torch.nn.Parameter(torch.ones(())), dtype

    def forward(self, x):
        rows = []
        for count in (1, 2, 5, 8, 17, 100):
            for start, end in ((0, 1), (-1, 1), (0.1, 0.7), (0, count - 1), (1, -2)):
                rows.append(torch.linspace(start, end, count, dtype=self.dtype) * 1)
        for step in (0.1, 1 / 3, 0.25, 2.5, 7):
            for end in (3.3, 100, 3000):
                rows += [torch.arange(start, end, step, dtype=self.dtype) * 1 for start in (0, 0.1)]
        rows.append(torch.arange(0, x.shape[0], 0.3, dtype=self.dtype) * 1)
        return self.scale * x.sum(), rows


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_rows_of_numbers_have_pytorchs_bits(dtype):
    module = Rows(dtype)
    wrapped = ORTModule(module)
    for rows in (3, 5, 8):
        x = torch.randn(rows, 2)
        for ours, theirs in zip(wrapped(x)[1], module.forward(x)[1], strict=True):
            assert torch.equal(ours, theirs)
    assert wrapped.fallback_reason is None
