"""Parts of a batch that have no rows: what computed on them has a gradient of zeros, as in PyTorch, and no None, which
weight decay and momentum tell apart. (Cleaning took them out of what joins the parts, and the path with them.)"""

import pytest
import torch
from modules import assert_same, of, pair, step, x


def joined_by_slices(m, x):
    return torch.cat([m.l(x), m.other(x[:0])])


def joined_by_lengths(m, x):
    return torch.cat([m.other(part) if place % 2 else m.l(part) for place, part in enumerate(x.split([2, 0, 1]))])


def joined_columns(m, x):
    return torch.cat([m.other(x)[:, :0], m.l(x)], -1)


def without_a_layer(m, x):
    return torch.cat([x[:0] * m.other.weight[0], m.l(x) * m.other.bias.detach()])


@pytest.mark.parametrize("way", [joined_by_slices, joined_by_lengths, joined_columns, without_a_layer])
def test_layers_of_no_rows_have_zeros(way):
    def make():
        return of(way, other=torch.nn.Linear(4, 4).double())

    wrapped, eager = pair(make)
    expected = step(eager, (x(grad=True).double(),))
    assert expected[1]["other.weight"].count_nonzero() == 0
    assert_same(step(wrapped, (x(grad=True).double(),)), expected)
    assert wrapped.fallback_reason is None


@pytest.mark.usefixtures("with_pieces")
@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_experts_without_rows_between_counts_that_python_reads():
    def mixture(m, x, chosen):
        order, counts = chosen.argsort(stable=True), torch.bincount(chosen + x.lt(-1e9).sum(), minlength=3)
        parts = x[order].split(counts.tolist())
        return torch.cat([expert(part) for expert, part in zip((m.l, m.other, m.third), parts, strict=True)])

    def make():
        return of(mixture, other=torch.nn.Linear(4, 4).double(), third=torch.nn.Linear(4, 4).double())

    wrapped, eager = pair(make)
    for chosen in ([0, 1, 2], [1, 1, 1], [2, 0, 2], [0, 0, 0]):
        given = x().double(), torch.tensor(chosen)
        assert_same(step(wrapped, given), step(eager, given))
