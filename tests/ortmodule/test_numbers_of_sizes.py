"""Numbers that forward computes of sizes in tensors of one number: one graph serves all lengths."""

import copy

import pytest
import torch
from counted import assert_one_graph
from modules import assert_same, step

from lowtide.guards.numbers_of_sizes import Inexact, number_of, result_of
from lowtide.ortmodule import ORTModule

LENGTHS = (17, 20, 25)


def padded_to(function):
    """Padded by what `function` makes of the length in a tensor, and of the stride that a buffer holds."""

    class Padded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.l = torch.nn.Linear(3, 3)
            self.stride = torch.nn.Buffer(torch.tensor(4), persistent=False)

        def forward(self, x):
            more = function(x.shape[1], self.stride)
            return self.l(torch.nn.functional.pad(x, (0, 0, 0, more), value=0.5))

    return Padded().double()


def signals():
    generator = torch.Generator().manual_seed(0)
    for length in LENGTHS:
        yield (torch.randn(2, length, 3, generator=generator, dtype=torch.float64, requires_grad=True),)


def rounded_up(length, stride):
    return torch.ceil(length / stride).to(torch.int64) * stride - length


def by_a_reciprocal(length, stride):
    return torch.floor(length / (stride + 45).double()).to(torch.int64) * 2


def in_double(length, stride):
    return (((torch.tensor(length) + 1).double() / stride).floor().long() - 2) * stride


def by_rest(length, stride):
    return (stride - length % stride) % stride


def by_whole_division(length, stride):
    return (length + stride - 1) // stride * stride - length


def by_division_that_rounds(length, stride):
    return torch.div(length + stride, stride, rounding_mode="floor")


def the_larger(length, stride):
    return torch.maximum(stride, torch.tensor(length) - 18)


def in_place(length, stride):
    more = torch.tensor(length)
    more += 3
    more //= stride
    return more


def branching(length, stride):
    return max(stride, length - stride) if length > 3 * stride else 1


def of_item(length, stride):
    return torch.floor(torch.tensor(length) / 4).int().item()


@pytest.mark.parametrize(
    "function",
    [
        rounded_up,
        in_double,
        by_rest,
        by_whole_division,
        by_division_that_rounds,
        the_larger,
        in_place,
        branching,
        of_item,
    ],
)
def test_one_graph_for_all_lengths(function):
    assert_one_graph(padded_to(function), signals())


def test_a_product_with_a_reciprocal_is_no_quotient():
    module = padded_to(by_a_reciprocal)
    wrapped = ORTModule(copy.deepcopy(module))
    for length in (50, 49, 98, 51):
        arguments = (torch.randn(2, length, 3, dtype=torch.float64, requires_grad=True),)
        assert_same(step(wrapped, arguments), step(module, arguments))


def test_an_end_of_a_slice_is_one():
    class Cut(torch.nn.Module):
        def forward(self, x):
            half = torch.ceil(torch.tensor(x.shape[1]) / 2).to(torch.int64)
            return x[:, :half].sin(), x[:, half:].cos()

    assert_one_graph(Cut(), signals())


def test_what_f32_rounds_is_asked_in_each_call():
    class Halved(torch.nn.Module):
        def forward(self, x, rows):
            return x * torch.ceil(torch.tensor(rows.shape[0]) / 2).to(torch.int64).item()

    module = Halved()
    wrapped = ORTModule(copy.deepcopy(module))
    for count in (5, 8, 2**24 + 1, 6):
        arguments = (torch.ones(3, requires_grad=True), torch.zeros(count, dtype=torch.uint8))
        assert_same(step(wrapped, arguments), step(module, arguments))


def test_a_number_is_exact_or_none():
    quotient = result_of("div", [number_of(2**20 - 1), number_of(320)], {}, torch.float32)
    assert result_of("ceil", [quotient], {}, torch.float32).numerator == 3277
    for arguments, dtype in (
        ([number_of(2**20), number_of(320)], torch.float32),
        ([number_of(2**49), number_of(320)], torch.float64),
        ([number_of(7), number_of(320)], torch.bfloat16),
        ([number_of(7), number_of(0)], torch.float32),
        ([number_of(7), number_of(-2)], torch.float32),
    ):
        with pytest.raises(Inexact):
            result_of("div", arguments, {}, dtype)
    with pytest.raises(Inexact):
        number_of(0.5)
    quotient = result_of("div", [number_of(7), number_of(320)], {}, torch.float32)
    for _ in range(7):
        quotient = result_of("add", [quotient, number_of(1)], {}, torch.float32)
    with pytest.raises(Inexact):
        result_of("add", [quotient, number_of(-8)], {}, torch.float32)
