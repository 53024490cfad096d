"""float() of a tensor, of a count, and what forward computes of counts by Python's operators: numbers of one graph."""

import copy
import math

import pytest
import torch

from lowtide.ortmodule import ORTModule


class Of(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.fc, self.function = torch.nn.Linear(4, 4).double(), function
        self.last = 0.0

    def forward(self, x):
        return self.function(self, self.fc(x), x)


def scaled_by_a_mean(m, h, x):
    return h * float(x.abs().mean())


def divided_by_a_count(m, h, x):
    return h.sum() / float((x > 0).sum())


def kept_for_a_log(m, h, x):
    loss = h.square().mean()
    m.last = float(loss)
    return loss


def float_of_a_length(m, h, x):
    return h.sum() / float(len(x[x > 0]))


def float_of_an_int(m, h, x):
    return h / (float(int((x > 0).sum())) + 0.5)


def share_of_elements(m, h, x):
    return h * ((x > 0).nonzero().shape[0] / x.numel())


def a_tenth_of_a_count(m, h, x):
    return torch.where(x > 0)[0].shape[0] * 0.1 + h


def power_of_a_count(m, h, x):
    return h * 0.9 ** len(x[x > 0]) + len(x[x > 0]) ** 0.5


def filled_with_a_share(m, h, x):
    share = len(h[h > 0]) / 7
    return torch.where(x > 0, h, share).masked_fill(x > 1, share)


def with_other_floats(m, h, x):
    ratio = float(x.max())
    limit = float("inf") if isinstance(ratio, str) else float(2)
    return (h * ratio).clamp(max=limit) * float(math.pi) + (0 if isinstance(limit, float) else 1)


def kept_under_no_grad(m, h, x):
    """It broke the graph: the number came out of a region."""
    with torch.no_grad():
        m.last = (h - 1).mean().item()
    return h


def read_under_no_grad_and_used_behind(m, h, x):
    with torch.no_grad():
        count, norm = int((h > 0).sum()), float(h.norm())
        m.last = norm * 2
    return h * norm / (count + 1.5)


def functions_of_counts(m, h, x):
    positive, chosen = int((x > 0).sum()), x[x > 0]
    h = h / math.sqrt(positive) * math.log(len(chosen) + 1) * math.exp(-positive) + math.log2(positive)
    return h * math.sqrt(chosen.shape[0] / 2)


def whole_parts_of_counts(m, h, x):
    positive = int((x > 0).sum())
    return h * math.floor(positive / 3) + math.ceil(positive / 4) * h.cos() - math.ceil(x.square().sum().item())


def parts_of_counts_as_sizes(m, h, x):
    positive, chosen = int((x > 0).sum()), h[x > 0]
    best = chosen.topk(math.ceil(chosen.shape[0] * 0.75))[0]
    return best.sum() + chosen[: math.floor(len(chosen) / 3)].cos().sum() + h.new_ones(math.floor(positive / 2)).sum()


def int_of_parts_of_counts(m, h, x):
    positive, chosen = int((x > 0).sum()), h[x > 0]
    best = chosen.topk(int(chosen.shape[0] * 0.75))[0]
    return best.sum() + h.new_ones(int(positive / 2)).sum() * h.sin() + h * int(x.square().sum().item())


def parts_of_sizes(m, h, x):
    rows = math.ceil(x.shape[0] / 4)
    return h[:rows].sum() + h[math.floor(0.5 * h.shape[0]) :].sin().sum() + h.new_ones(rows, 2).sum()


FUNCTIONS = (
    int_of_parts_of_counts,
    parts_of_counts_as_sizes,
    parts_of_sizes,
    functions_of_counts,
    whole_parts_of_counts,
    scaled_by_a_mean,
    divided_by_a_count,
    kept_for_a_log,
    float_of_a_length,
    float_of_an_int,
    share_of_elements,
    a_tenth_of_a_count,
    power_of_a_count,
    filled_with_a_share,
    with_other_floats,
    kept_under_no_grad,
    read_under_no_grad_and_used_behind,
)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_one_graph_for_all_numbers(function):
    torch.manual_seed(0)
    model = Of(function)
    models, agents = (model, ORTModule(copy.deepcopy(model))), set()
    for rows in (5, 8, 5, 6):
        x, found = torch.randn(rows, 4, dtype=torch.float64), []
        for each in models:
            each.zero_grad()
            loss = each(x).sum()
            loss.backward()
            found.append([loss.detach(), [parameter.grad for parameter in each.parameters()]])
        torch.testing.assert_close(*found)
        assert models[1].fallback_reason is None
        agents.add(models[1]._training_manager.last_agent)
    assert len(agents) == 1
    assert isinstance(models[1].last, float) and models[1].last == pytest.approx(model.last)


def test_what_python_rounds_twice_is_no_whole_division():
    """1 / 49 * 49 is less than 1."""
    wrapped = ORTModule(Of(lambda m, h, x: h.sum() + h[: math.floor(int((x > 0).sum()) / 49 * 49)].cos().sum()))
    x = -torch.ones(3, 4, dtype=torch.float64)
    for count in (1, 2, 5):
        x.view(-1)[:count] = 1
        hidden = wrapped.module.fc(x)
        expected = hidden.sum() + hidden[: math.floor(count / 49 * 49)].cos().sum()
        torch.testing.assert_close(wrapped(x), expected)


def test_a_function_without_a_value_is_pythons_error():
    wrapped = ORTModule(Of(lambda m, h, x: h * math.log(int((x > 0).sum()))))
    x = torch.ones(3, 4, dtype=torch.float64)
    wrapped(x)
    assert wrapped.fallback_reason is None
    with pytest.raises(ValueError, match="math domain error|expected a positive input"):
        wrapped(-x)
