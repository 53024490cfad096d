"""./dev bench coverage: docs/ops.md says where ops run; what is wrong or refused is told."""

import sys
from pathlib import Path

import pytest
import torch

from lowtide import _lowtide

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks" / "coverage"), str(ROOT / "tests" / "ops")]
import kinds  # noqa: E402
import page  # noqa: E402
import sample_graph  # noqa: E402

LIMIT = 6  # what the page was written with
OPS = (
    "abs_",
    "addbmm",
    "atan2",
    "nn.functional.channel_shuffle",
    "digamma",
    "floor_divide_",
    "hstack",
    "ldexp_",
    "nan_to_num",
    "pow_",
    "transpose_",
)
OPS += ("nn.functional.softshrink", "nn.functional.triplet_margin_loss", "masked_select", "scatter_reduce.prod")
OPS += ("fft.fft", "view_as_complex")


@pytest.fixture(scope="module", autouse=True)
def torch_installed():
    _lowtide.install_torch(torch.get_num_threads())


@pytest.mark.parametrize("name", OPS)
def test_the_page_says_where_an_op_runs(name):
    coverage = kinds.cover(kinds.variants()[name], LIMIT)
    assert coverage.total and not coverage.wrong
    told = page.documented()[name]
    if coverage.reasons:
        assert told == "; ".join(sorted(coverage.reasons))
    else:
        assert told == page.HEADINGS[page.where(coverage)]


def test_every_op_is_on_the_page():
    unknown = page.documented().keys() - kinds.variants().keys()
    assert not unknown and len(page.documented()) > 700


def test_a_wrong_result_is_told(monkeypatch):
    monkeypatch.setattr(sample_graph, "_difference", lambda *each: "an entry differs")
    coverage = kinds.cover(kinds.variants()["exp"], 1)
    assert coverage.counts == {kinds.WRONG: 1}
    assert "output 0: an entry differs" in coverage.wrong[0]
