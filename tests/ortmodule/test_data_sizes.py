"""Sizes and numbers from data inside the graph: one export for all counts, values and gradients as PyTorch's."""

import copy
import sys

import pytest
import torch
import torch.nn.functional as F
from counted import assert_one_graph, rows
from habits import assertion_of_a_number
from modules import Of, assert_same, step

from lowtide.errors import UnplannedSize
from lowtide.ortmodule import ORTModule


def by_rows(m, x):
    return m.l(x)[x[:, 0] > 0]


def by_elements(m, x):
    y = m.l(x)
    return y[y > 0].sum() * 2, y[y > 0]


def mean_of_chosen(m, x):
    kept = x[:, 0] > 0
    return F.mse_loss(m.l(x)[kept], x[kept], reduction="sum") / (kept.sum() + 1)


def masked_select(m, x):
    return torch.masked_select(m.l(x), x[:, :1] > 0) ** 2


def masked_select_twice(m, x):
    """The losses of spectrograms, SpeechT5's and Tacotron's."""
    y, kept = m.l(x), x > 0
    return F.l1_loss(y.masked_select(kept), x.masked_select(kept)) + F.mse_loss(y.tanh()[kept], x[kept])


def places(m, x):
    where = (m.l(x) > 0).nonzero()
    return m.l(x)[where[:, 0], where[:, 1]], where


def where_of_one(m, x):
    (kept,) = torch.where(x[:, 0] > 0)
    return m.l(x)[kept], kept


def columns_by_mask(m, x):
    return m.l(x)[:, m.l.weight.sum(0) > 0], x


def with_an_index(m, x):
    return m.l(x)[x[:, 0] > 0, 1]


def put_values(m, x):
    kept = x[:, 0] > 0
    y = m.l(x).clone()
    y[kept] = y[kept] * 2 + 1
    return y


def put_one_value(m, x):
    y = m.l(x).clone()
    y[x[:, 0] > 0] = 3.0
    y[x[:, 0] < 0, 1] = 2.0
    return y


def put_more(m, x):
    kept = x[:, 0] > 0
    return m.l(x).index_put((kept,), x[kept].tanh(), accumulate=True)


def scattered(m, x):
    kept = (x[:, :1] > 0).expand_as(x)
    return m.l(x).masked_scatter(kept, x.sin())


def added_by_index(m, x):
    """As an expert's tokens are."""
    (kept,) = torch.where(x[:, 0] > 0)
    return torch.zeros_like(x).index_add(0, kept, m.l(x[kept]) * 2)


def in_two_steps(m, x):
    y = m.l(x)[x[:, 0] > 0]
    return y[y[:, 1] > 0], y.shape[0] * y.sum()


def elements_of_chosen_rows(m, x):
    """The exporter bounds their number by that of the rows' elements, beyond 64 bits; it was an internal error."""
    y = m.l(x[x[:, 0] > 0])
    return y[y > 0].sum(), y[y > 0]


def in_parts_that_are_counted(m, x):
    """As nn.AdaptiveLogSoftmaxWithLoss: the count bounds the rows by a sum beyond 64 bits; it was an error."""
    y, counted = torch.zeros_like(x), 0
    for part in (x[:, 0] > 0, x[:, 0] <= 0):
        kept = part.nonzero()[:, 0]
        y, counted = y.index_copy(0, kept, m.l(x[kept])), counted + kept.numel()
    if counted != x.shape[0]:
        raise RuntimeError("rows are missing")
    return y


def ones_for_each(m, x):
    kept = (x[:, 0] > 0).nonzero()
    return m.l(x)[kept[:, 0]] + torch.ones(kept.shape[0], 1, dtype=x.dtype).cumsum(0)


CASES = [
    by_rows,
    by_elements,
    mean_of_chosen,
    masked_select,
    masked_select_twice,
    places,
    where_of_one,
    columns_by_mask,
    with_an_index,
    put_values,
    put_one_value,
    put_more,
    scattered,
    added_by_index,
    in_two_steps,
    elements_of_chosen_rows,
    in_parts_that_are_counted,
    ones_for_each,
]


@pytest.mark.parametrize("forward", CASES, ids=lambda forward: forward.__name__)
def test_one_graph_serves_all_counts(forward):
    calls = [(rows(chosen),) for chosen in (3, 0, 6, 1)] + [(rows(5, 9),), (rows(2),)]
    assert_one_graph(Of(forward).double(), calls)


# ---- numbers that item() reads


def as_a_factor(m, x):
    return m.l(x) * x.sum().item() + x.abs().max().item() / 2


def as_an_int(m, x):
    chosen = (x[:, 0] > 0).sum().item()
    return m.l(x) * chosen + chosen // 2


def as_a_size(m, x):
    chosen = (x[:, 0] > 0).sum().item()
    torch._check(chosen <= x.shape[0])
    return m.l(x)[:chosen], torch.ones(chosen, dtype=x.dtype) * m.l(x).sum()


def as_an_end(m, x):
    chosen = (x[:, 0] > 0).sum().item()
    return m.l(x)[:chosen] * 2


def as_a_start(m, x):
    chosen = (x[:, 0] > 0).sum().item()
    return m.l(x)[chosen:], m.l(x)[-1 - chosen :]


def as_two_parts(m, x):
    chosen = (x[:, 0] > 0).sum()
    first, second = torch.split(m.l(x), torch.stack([chosen, x.shape[0] - chosen]).tolist())
    return first.exp(), second


NUMBERS = [as_a_factor, as_an_int, as_a_size, as_an_end, as_a_start, as_two_parts]


@pytest.mark.parametrize("forward", NUMBERS, ids=lambda forward: forward.__name__)
def test_one_graph_serves_all_numbers(forward):
    calls = [(rows(chosen),) for chosen in (3, 0, 5, 1)] + [(rows(2, 9),)]
    assert_one_graph(Of(forward).double(), calls)


def test_a_number_has_no_gradient_and_keeps_its_precision():
    module = Of(lambda m, x: (m.l(x) * (x.sum().item() / 3)).float())
    assert_one_graph(module.double(), [(rows(3),), (rows(1),)])


# ---- sizes that item() reads out of tensors again


def relative_positions(m, x):
    """As DeBERTa's: the middle of a table, as wide as the rows are."""
    span = torch.tensor(min(x.shape[0], 8)).detach()
    table = m.l.weight.repeat(4, 1)[8 - span : span + 8]
    return m.l(x) @ table.t().clamp(max=2 * span - 1), table.shape[0]


def read_in_two_ways(m, x):
    rows = torch.tensor(x.shape[0])
    return m.l(x)[rows // 2 - 1 :], m.l(x)[: (rows * 2 - 4).item()], m.l(x)[:, : torch.minimum(rows, rows - 3)] * 2


def elements_of_levels(m, x):
    """As SAM 3's: a row of sizes for each level."""
    levels = torch.tensor([(x.shape[0], 2), (3, x.shape[1])], dtype=torch.long)
    (height, two), (_, width) = levels.unbind(0)
    places = torch.arange(0, height, dtype=x.dtype) / height
    return m.l(x) * places[:, None] + torch.arange(width, dtype=x.dtype), m.l(x)[: two + 1]


def sums_of_levels(m, x):
    levels = torch.as_tensor([[x.shape[0], 2]] * 2)
    counts = levels.prod(1)
    ends = torch.cat([counts, levels.sum().unsqueeze(0)]).cumsum(0)
    table = m.l.weight.repeat(16, 1)
    return m.l(x).sum() * table[: ends[1]], table[ends[0] - 1 : ends[2] - 2], table[: levels.t().flip(0)[1, 0]]


def literal_levels(m, x):
    height, width = torch.tensor([[2, 3]])[0].tolist()
    return m.l(x)[:height], torch.arange(width, dtype=x.dtype) * m.l(x).sum()


READ_BACK = [relative_positions, read_in_two_ways, elements_of_levels, sums_of_levels, literal_levels]


@pytest.mark.parametrize("forward", READ_BACK, ids=lambda forward: forward.__name__)
def test_sizes_read_back_are_sizes(forward):
    calls = [(rows(3, count),) for count in (6, 5, 7)]
    assert_one_graph(Of(forward).double(), calls)


def test_a_size_read_back_plans_no_more_than_it_is():
    def put(m, x, span):
        return (m.l(x) @ m.l.weight.repeat(64, 1)[128 - span : span + 128].t()).exp()

    by_size, by_tensor = (
        ORTModule(Of(forward).double())
        for forward in (lambda m, x: put(m, x, x.shape[0]), lambda m, x: put(m, x, torch.tensor(x.shape[0])))
    )
    peaks = []
    for wrapped in (by_size, by_tensor):
        step(wrapped, (rows(3),))
        assert wrapped.fallback_reason is None
        peaks.append(wrapped.memory_report()["planned_peak_bytes"])
    assert peaks[1] <= 1.1 * peaks[0]


@pytest.mark.parametrize("view", [lambda count: count, lambda count: count.view(1)[0]], ids=["itself", "a view"])
def test_what_is_written_before_it_is_read_is_no_size_any_more(view):
    def forward(m, x):
        count = torch.tensor(x.shape[0])
        view(count).sub_((x[:, 0] > 0).sum())
        return m.l(x)[:count]

    assert_one_graph(Of(forward).double(), [(rows(chosen),) for chosen in (3, 1)])


def test_a_count_that_must_not_be_zero_is_checked():
    """PyTorch's exporter asserts it where it takes a product to have elements."""

    def forward(m, x):
        chosen = (x[:, 0] > 0).sum().item()
        kept = m.l(x)[:chosen]
        torch._check(kept.shape[0] != 0)
        return kept @ m.l.weight

    wrapped = assert_one_graph(Of(forward).double(), [(rows(chosen),) for chosen in (3, 1)])
    with pytest.raises(RuntimeError, match="Expected cond to be True"):
        wrapped(rows(0))


def test_a_check_of_how_many_were_chosen():
    """The exporter takes the count for what the check says: nothing else would hold the mask to it."""

    def forward(m, x):
        kept = m.l(x)[x[:, 0] > 0]
        torch._check(kept.shape[0] >= 2)
        return kept @ m.l.weight

    wrapped = assert_one_graph(Of(forward).double(), [(rows(chosen),) for chosen in (3, 2)])
    with pytest.raises(RuntimeError, match="Expected cond to be True"):
        wrapped(rows(1))


# ---- what else finds sizes


def unique(m, x):
    values, inverse, counts = torch.unique((x * 2).long(), return_inverse=True, return_counts=True)
    return m.l(x).sum() * values.shape[0], values, inverse, counts


def unique_among_neighbours(m, x):
    values, counts = torch.unique_consecutive((x[:, 0] > 0).long(), return_counts=True)
    return m.l(x).sum(), values, counts


def repeated(m, x):
    """The rows where x is positive twice, and none of the others but the first, which fills up."""
    twice = (x[:, 0] > 0).long() * 2
    twice[0] += 2 * x.shape[0] - twice.sum()
    return torch.repeat_interleave(m.l(x), twice, dim=0, output_size=2 * x.shape[0])


@pytest.mark.parametrize("forward", [unique, unique_among_neighbours, repeated], ids=lambda forward: forward.__name__)
def test_results_as_long_as_data_say(forward):
    calls = [(rows(chosen),) for chosen in (3, 0, 6)] + [(rows(5, 9),)]
    assert_one_graph(Of(forward).double(), calls)


# ---- what goes wrong, and what a plan says


def test_counts_that_are_taken_as_one_are_compared():
    def forward(m, x, y):
        return m.l(x)[x[:, 0] > 0] + y[y[:, 0] > 0]

    module, wrapped = Of(forward).double(), ORTModule(Of(forward).double())
    wrapped.load_state_dict(module.state_dict())
    arguments = (rows(3), rows(3).detach())
    assert_same(step(wrapped, arguments), step(module, arguments))
    assert wrapped.fallback_reason is None
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):  # PyTorch's words
        wrapped(rows(3), rows(4).detach())


def test_a_condition_that_does_not_hold_stops_the_step(monkeypatch):
    def forward(m, x):
        chosen = (x[:, 0] > 0).sum().item()
        torch._check(chosen <= 4)
        return m.l(x)[:chosen]

    wrapped = ORTModule(Of(forward).double())
    wrapped(rows(4))
    assert wrapped.fallback_reason is None
    with pytest.raises(RuntimeError, match="Expected cond to be True"):
        wrapped(rows(5))
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    alone = ORTModule(Of(forward).double())
    alone(rows(4))
    with pytest.raises(UnplannedSize, match="outside of the range"):
        alone(rows(5))


def check_of_a_tensor(m, x, classes):
    if classes is not None and classes.max() >= 5:
        raise ValueError("no such class")
    return m.n(m.l(x)) * classes.sum()


def check_of_all_behind_another(m, x, classes):
    if classes is not None and not torch.all(classes < 5):
        raise ValueError("no such class")
    return m.n(m.l(x)) * classes.sum()


def check_of_two(m, x, classes):
    if not torch.isfinite(x).all() or (classes >= 5).any():
        raise ValueError("not such numbers")
    return m.n(m.l(x)) * classes.sum()


def check_of_a_count(m, x, classes):
    if len(torch.unique_consecutive(classes)) > 2:
        raise ValueError("more than two")
    return m.n(m.l(x)) * classes.sum()


def check_of_all_elements(m, x, classes):
    torch._check_tensor_all(classes < 5, lambda: "no such class")
    return m.n(m.l(x)) * classes.sum()


def check_before_another_way(m, x, classes):
    if (classes < 5).all():
        return m.n(m.l(x)) * classes.sum()
    else:
        raise ValueError("no such class")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not tell which question a line asks")
@pytest.mark.parametrize(
    "forward",
    [
        check_of_a_tensor,
        check_of_all_behind_another,
        check_of_two,
        assertion_of_a_number,
        check_of_a_count,
        check_of_all_elements,
        check_before_another_way,
    ],
)
def test_a_check_that_only_raises_is_in_the_graph(forward, exports):
    module = Of(forward, n=torch.nn.BatchNorm1d(4)).double()
    wrapped = ORTModule(copy.deepcopy(module))
    good, bad = torch.tensor([1, 1, 1, 1, 1, 4]), torch.tensor([7, 1, 5, 1, 1, 4])
    for count in (6, 4):
        arguments = (rows(3, count), good[:count])
        assert_same(step(wrapped, arguments), step(module, arguments))
        assert wrapped.fallback_reason is None
    for one in (module, wrapped):
        with pytest.raises(
            (ValueError, AssertionError, RuntimeError), match=r"no such class|not such numbers|more than two"
        ):
            one(rows(3), bad)
    arguments = (rows(3), good)
    assert_same(step(wrapped, arguments), step(module, arguments))
    torch.testing.assert_close(dict(wrapped.named_buffers()), dict(module.named_buffers()))
    assert wrapped.fallback_reason is None and len(exports) == 1


def test_a_check_of_a_real_number_is_python_between_pieces(with_pieces):
    def forward(m, x):
        if x.mean().item() > 50:
            raise ValueError("large")
        return m.l(x)

    wrapped = ORTModule(Of(forward).double())
    wrapped(rows(3))
    assert "2 of 2 pieces" in wrapped.fallback_reason
    with pytest.raises(ValueError, match="large"):
        wrapped(rows(3) * 1e4 + 1e4)


def test_a_check_that_eager_does_not_ask_is_pytorchs_own():
    """The graph takes every question of a check for answered; here the first answer decides."""

    def forward(m, x):
        if x.sum() > 100 and x.min() > 0:
            raise ValueError("large")
        return m.l(x)

    module = Of(forward).double()
    wrapped = ORTModule(copy.deepcopy(module))
    for x in (rows(3), rows(3) - 1, rows(3) * 1000, rows(3)):
        x = x.detach().requires_grad_()
        assert_same(step(wrapped, (x,)), step(module, (x,)))
    assert wrapped.fallback_reason is None


def test_a_size_without_a_bound_goes_to_pieces_in_words():
    wrapped = ORTModule(Of(lambda m, x: torch.zeros((x[:, 0] > 0).long().sum().mul(2).item()).sum() + m.l(x)).double())
    wrapped(rows(3))
    assert "without an upper bound: torch._check" in wrapped.fallback_reason


def test_forwards_that_wait_have_their_own_counts():
    module = Of(by_rows).double()
    wrapped = ORTModule(copy.deepcopy(module))
    calls = [rows(chosen) for chosen in (4, 0, 6, 2)]
    for outputs in ([module(x) for x in calls], [wrapped(x) for x in calls]):
        for output in reversed(outputs):
            (output**2).sum().backward()
    torch.testing.assert_close(wrapped.l.weight.grad, module.l.weight.grad, rtol=1e-10, atol=1e-12)
    assert wrapped.fallback_reason is None


def test_the_peak_is_that_of_the_bound(monkeypatch):
    wrapped = ORTModule(Of(lambda m, x: (m.l(x)[x[:, 0] > 0].sin() ** 2).sum()).double())
    peaks = set()
    for chosen in (0, 3, 512):
        wrapped.zero_grad()  # gradients that are held need a block beside the arena
        wrapped(rows(chosen, 512)).backward()
        peaks.add(wrapped.memory_report()["planned_peak_bytes"])
    (peak,) = peaks
    assert peak >= 3 * 512 * 4 * 8  # the rows, their sine and its square

    monkeypatch.setenv("LOWTIDE_GUARD", "1")
    guarded = ORTModule(Of(by_rows).double())
    for chosen in (0, 3, 6):
        guarded(rows(chosen)).sum().backward()


def test_evaluation_and_no_gradients():
    module = Of(by_rows).double().eval()
    wrapped = ORTModule(copy.deepcopy(module))
    for chosen in (3, 0, 6):
        with torch.no_grad():
            torch.testing.assert_close(wrapped(rows(chosen)), module(rows(chosen)))
    assert wrapped.fallback_reason is None
