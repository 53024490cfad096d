"""Sizes and numbers from data inside the graph: one export for all counts, values and gradients as PyTorch's."""

import copy
import sys

import pytest
import torch
import torch.nn.functional as F
from habits import assertion_of_a_number
from modules import Of, assert_same, step

from lowtide.errors import UnplannedSize
from lowtide.ortmodule import ORTModule


def rows(chosen, count=6):
    """x of `count` rows, of which the first columns of `chosen` are positive."""
    values = torch.randn(count, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    values[:, 0] = values[:, 0].abs().add(0.1)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(count))
    values[order[chosen:], 0] *= -1
    return values.requires_grad_()


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


def ones_for_each(m, x):
    kept = (x[:, 0] > 0).nonzero()
    return m.l(x)[kept[:, 0]] + torch.ones(kept.shape[0], 1, dtype=x.dtype).cumsum(0)


CASES = [
    by_rows,
    by_elements,
    mean_of_chosen,
    masked_select,
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
    ones_for_each,
]


def assert_one_graph(module, calls):
    """One export serves the calls, with PyTorch's outputs and gradients; the wrapped module."""
    wrapped, agents = ORTModule(copy.deepcopy(module)), set()
    for arguments in calls:
        assert_same(step(wrapped, arguments), step(module, arguments), rtol=1e-9, atol=1e-11)
        assert wrapped.fallback_reason is None
        agents.add(wrapped._training_manager.last_agent)
    assert len(agents) == 1
    return wrapped


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


@pytest.mark.parametrize("forward", [relative_positions, read_in_two_ways], ids=lambda forward: forward.__name__)
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
    wrapped = ORTModule(Of(lambda m, x: torch.zeros((x[:, 0] > 0).sum().item()).sum() + m.l(x)).double())
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


# ---- mixtures of experts


class Experts(torch.nn.Module):
    """Two of four experts for each row."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.router = torch.nn.Linear(4, 4)
        self.up = torch.nn.Parameter(torch.randn(4, 8, 4))
        self.down = torch.nn.Parameter(torch.randn(4, 4, 8))

    def forward(self, x):
        weights, experts = self.router(x).softmax(-1).topk(2)
        return self.way(self, x, weights, experts)


def one_expert_after_another(m, x, weights, experts):
    result = torch.zeros_like(x)
    for expert in range(4):
        row, choice = torch.where(experts == expert)
        y = F.linear(F.silu(F.linear(x[row], m.up[expert])), m.down[expert])
        result.index_add_(0, row, y * weights[row, choice, None])
    return result


def product_of_groups(x, weight, ends):
    """As transformers writes it in traces: PyTorch's own has no trace but in bf16."""
    import transformers.integrations.moe  # noqa: F401, registers the op

    return torch.ops.transformers.grouped_mm_fallback(x, weight, ends)


def by_groups(m, x, weights, experts):
    order = experts.reshape(-1).argsort(stable=True)
    counts = torch.histc(experts.reshape(-1).float(), bins=4, min=0, max=3)
    ends = counts.cumsum(0).int()
    y = product_of_groups(x[order // 2], m.up.transpose(-2, -1), ends)
    y = product_of_groups(F.silu(y), m.down.transpose(-2, -1), ends)
    y = (y * weights.reshape(-1)[order, None])[order.argsort()]
    return y.view(*x.shape[:1], 2, -1).sum(1)


def test_parts_of_counted_sizes_that_are_joined_again():
    """A mixture that splits the sorted rows by counts, joins what its experts make, and adds that to its rows."""

    def function(m, x):
        chosen = (x[:, :3] > 0).sum(1)
        counts = F.one_hot(chosen, 4).sum(0).tolist()
        order = chosen.argsort(stable=True)
        parts = x[order].split(counts, dim=0)
        joined = torch.cat([m.l(part) * (1 + place) for place, part in enumerate(parts)])
        return torch.zeros_like(x).index_add(0, order, joined * x.sum(1)[order, None])

    module = Of(function).double()
    wrapped = ORTModule(copy.deepcopy(module))
    for count in (6, 8, 9):
        for chosen in (1, 4):
            given = rows(chosen, count)
            assert_same(step(wrapped, (given,)), step(module, (given,)))
            assert wrapped.fallback_reason is None
    assert sum(wrapped.transition_counts()["in training mode"].values()) == 1


def test_a_question_on_a_count_beside_a_size():
    """Loops of a graph: those that are there go, one for each node comes, and nothing is done for no edges."""

    def function(m, x):
        kept = x[x[:, 0] > 0]
        edges = torch.cat([kept, x])
        return x.sum() if edges.numel() == 0 else m.l(edges)

    module = Of(function).double()
    wrapped = ORTModule(copy.deepcopy(module))
    for count in (6, 8, 9):
        given = rows(3, count)
        assert_same(step(wrapped, (given,)), step(module, (given,)))
        assert wrapped.fallback_reason is None
    assert sum(wrapped.transition_counts()["in training mode"].values()) == 1
    for count in (1, 0):
        given = rows(0, count)
        assert_same(step(wrapped, (given,)), step(module, (given,)))


@pytest.mark.parametrize("way", [one_expert_after_another, by_groups], ids=lambda way: way.__name__)
def test_mixtures_of_experts_are_one_graph(way):
    wrapped = assert_one_graph(Experts(way).double(), [(rows(4, count),) for count in (6, 9, 2)])
    assert wrapped._training_manager.last_agent.session.report["fallbacks"] == []
