"""What a call's arguments are to forward: lists that it changes, keywords in an order, numbers by their signs."""

import copy

import pytest
import torch
from modules import of, x

from lowtide.ortmodule import ORTModule


def both(function):
    module = of(function)
    return module, ORTModule(copy.deepcopy(module))


@pytest.mark.parametrize("kind", [list, dict])
def test_what_forward_appends_is_in_the_callers_list(kind):
    def appending(m, parts):
        items = parts if kind is list else parts["items"]
        items.append(m.l(items[0]))
        return items[-1]

    plain, wrapped = both(appending)
    for rows in (2, 3):
        found = []
        for module in (plain, wrapped):
            items = [x(rows, 4).double()]
            result = module(items if kind is list else {"items": items})
            assert len(items) == 2
            found.append((result, items[1]))
        torch.testing.assert_close(*found)
    assert wrapped.fallback_reason is None


def test_a_list_beside_a_sparse_argument_is_the_callers():
    def appending(m, adjacency, parts):
        parts.append(adjacency @ m.l(parts[0]))
        return parts[-1]

    plain, wrapped = both(appending)
    found = []
    for module in (plain, wrapped):
        parts = [x(3, 4).double()]
        found.append((module(torch.eye(3).double().to_sparse(), parts), parts))
    torch.testing.assert_close(*found)
    assert wrapped.fallback_reason is None


def test_a_list_with_a_sparse_tensor_that_forward_changes_is_pytorchs():
    def appending(m, parts):
        parts.append(parts[0] @ m.l(parts[1]))
        return parts[-1]

    plain, wrapped = both(appending)
    found = []
    for module in (plain, wrapped):
        parts = [torch.eye(3).double().to_sparse(), x(3, 4).double()]
        found.append((module(parts), parts[1:]))
    torch.testing.assert_close(*found)
    assert "forward changes a list with a sparse tensor in it" in wrapped.fallback_reason


def test_keywords_called_like_the_parameters_of_the_rest_keep_their_order():
    def in_order(m, *a, **k):
        return sum(m.l(each) * place for place, each in enumerate(k.values(), 1)) + len(a)

    plain, wrapped = both(in_order)
    for names in (("args", "other"), ("other", "args"), ("args", "other")):
        batch = {name: x(2, 4).double() for name in names}
        torch.testing.assert_close(wrapped(**batch), plain(**batch))
    assert wrapped.fallback_reason is None


@pytest.mark.parametrize("one, other", [(0.0, -0.0), (complex(1.0, 0.0), complex(1.0, -0.0))])
def test_zeros_of_two_signs_are_two_numbers(one, other):
    def signed(m, a, number):
        part = number.imag if isinstance(number, complex) else number
        return m.l(a) * torch.copysign(torch.ones((), dtype=torch.float64), torch.tensor(part))

    plain, wrapped = both(signed)
    for number in (one, other, one):
        torch.testing.assert_close(wrapped(x(2, 4).double(), number), plain(x(2, 4).double(), number))
    assert wrapped.fallback_reason is None


def test_a_nan_is_one_number():
    wrapped = ORTModule(of(lambda m, a, number: m.l(a) if number != number else m.l(a) * number))
    for _ in range(3):
        wrapped(x(2, 4).double(), float("nan"))
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1}}
