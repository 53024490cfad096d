"""topk among equal scores: the values, the indices and their order are those of PyTorch's kernel."""

import math

import pytest
import torch

from lowtide.ortmodule import ORTModule

SIZES = (1, 3, 8, 17, 64, 130, 1000)  # PyTorch sorts only a part from k * 64 <= size on


class Best(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, scores):
        found = scores.topk(**self.options)
        return found.values, found.indices


def scores(size, dtype, kinds):
    """Rows of few values, a NaN now and then."""
    found = torch.randint(-kinds, kinds, (9, size), generator=torch.Generator().manual_seed(size)).to(dtype)
    if dtype.is_floating_point:
        found[0, size // 2] = math.nan
    return found


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16, torch.int64), ids=str)
@pytest.mark.parametrize("largest", (True, False), ids=("largest", "smallest"))
@pytest.mark.parametrize("is_sorted", (True, False), ids=("sorted", "unsorted"))
def test_equal_scores(dtype, largest, is_sorted):
    for k in (1, 2, 8, 130):
        plain = Best(k=k, largest=largest, sorted=is_sorted)
        wrapped = ORTModule(Best(**plain.options))
        for size in SIZES[SIZES.index(next(size for size in SIZES if size >= k)) :]:
            for kinds in (1, 3, 1000):
                given = scores(size, dtype, kinds)
                found, expected = wrapped(given), plain(given)
                assert wrapped.fallback_reason is None
                assert not wrapped._training_manager.last_agent.session.report["fallbacks"]
                torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_along_the_first_dim():
    given = scores(40, torch.float32, 2)
    plain, wrapped = Best(k=3, dim=0), ORTModule(Best(k=3, dim=0))
    torch.testing.assert_close(wrapped(given), plain(given), rtol=0, atol=0, equal_nan=True)
