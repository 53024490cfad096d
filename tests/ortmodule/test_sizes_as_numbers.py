"""Numbers that forward computes from sizes by way of floats: each size has eager's, and one graph has them all."""

import copy
import math
import numbers

import pytest
import torch
from cached import graphs

from lowtide.ortmodule import ORTModule

F = torch.nn.functional
COLUMNS = (8, 6, 11, 7, 9, 21)

# Of a size as an operand: one export.
OPERANDS = {
    "a quotient": lambda x, n: x * (n / 2),
    "an inverse": lambda x, n: x * (1 / n),
    "a product": lambda x, n: x * (n * 0.37 + 1),
    "a sum": lambda x, n: x + (n + 1.5),
    "a root": lambda x, n: x * n**0.5,
    "under a root": lambda x, n: torch.softmax(x @ x.transpose(1, 2) / n**0.5, -1) @ x,
    "a bound": lambda x, n: x.clamp(max=n / 10) * (x > n / 30),
    "filled": lambda x, n: x * torch.full((2, 1, 1), n / 3, dtype=x.dtype),
    "a step": lambda x, n: torch.add(x, x, alpha=n / 2),
    "two sizes": lambda x, n: x * (math.ceil(n / 2) / n),
}
# Of a size that becomes another.
SIZES = {
    "ceil": lambda x, n: x[:, : math.ceil(n / 2)],
    "floor": lambda x, n: x[:, : math.floor(n / 2) + 1],
    "trunc": lambda x, n: x[:, : math.trunc(n / 2) + 1],
    "of a product": lambda x, n: x[:, : math.ceil(n * 0.625)],
    "to whole blocks": lambda x, n: F.pad(x, (0, 0, 0, math.ceil(n / 4) * 4 - n)),
    "below zero": lambda x, n: F.pad(x, (0, 0, 0, math.ceil((n - 20) / 3) + math.floor((n - 20) / 3) + 16)),
    "halves": lambda x, n: torch.stack([part.mean(1) for part in x.split(math.ceil(n / 2), 1)]).mean(0),
    "interpolated": lambda x, n: F.interpolate(x.transpose(1, 2), scale_factor=1.5).transpose(1, 2),
    "recomputed": lambda x, n: F.interpolate(
        x.transpose(1, 2), scale_factor=0.5, mode="linear", recompute_scale_factor=True
    ).transpose(1, 2),
}
# What asks for a plain number: the second size teaches it.
ASKS = {
    "int": lambda x, n: x[:, : int(n)],
    "int of a quotient": lambda x, n: x[:, : int(n / 2) + 1],
    "int of a product": lambda x, n: x.topk(max(1, int(n * 0.25)), dim=1)[0],
    "float": lambda x, n: x / float(n),
    "a tensor of a float": lambda x, n: x / torch.tensor(float(n)),
    "sqrt": lambda x, n: x / math.sqrt(n),
    "exp": lambda x, n: x * math.exp(-n / 10),
    "log": lambda x, n: x * math.log(n) / math.log2(n + 2),
    "a range of one place": lambda x, n: sum(x[:, place : place + n].sin() for place in range(0, n, n)),
    "int and its class": lambda x, n: x[:, : int(n)] * (1 if isinstance(int(n), int) else 0),
}
# What needs an export for each, and right numbers.
EACH = {
    "a root that is a size": lambda x, n: x[:, : int(math.sqrt(n))],
    "log to a base": lambda x, n: x * math.log(n, 512),
    "round": lambda x, n: x[:, : round(n / 2)],
    "a decimal part": lambda x, n: x[:, : int(n * 0.15) + 1],
    "a range": lambda x, n: sum(x[:, place] for place in range(int(n))),
}
CLASSES = {
    "int": lambda x, n: x * (1 if isinstance(n, int) else 0),
    "one of two": lambda x, n: x * (1 if isinstance(n, (float, int)) else 0),  # noqa: UP038
    "float": lambda x, n: x * (1 if isinstance(n / 2, float) else 0),
    "no str": lambda x, n: x * (0 if isinstance(n, str) else 1),
    "a number": lambda x, n: x * (1 if isinstance(n, numbers.Number) else 0),
    "bool": lambda x, n: x * (1 if isinstance(n > 3, bool) else 0),
    "of all elements": lambda x, n: x * (1 if isinstance(x.numel(), int) else 0),
}


def by_pattern(n):
    match n:
        case 8:
            return 2
        case int():
            return 5
    return 7


def both_sides(n):
    return (n, n) if type(n) in (int, float) else n


# Which a trace cannot answer: each size has its own graph.
BY_TYPE = {
    "is": lambda x, n: x * (2 if type(n) is int else 3),
    "among": lambda x, n: x * both_sides(n)[0],
    "equal": lambda x, n: x * (2 if type(n / 2) == float else 3),  # noqa: E721
    "an attribute": lambda x, n: x * (2 if n.__class__ is int else 3),
    "a pattern": lambda x, n: x * by_pattern(n),
}


class Net(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.l, self._function = torch.nn.Linear(4, 4), function

    def forward(self, x):
        return self.l(self._function(x, x.shape[1])).square().mean()


def exports_for(function, exports, dtype=torch.float64, **tolerance):
    """How many there are after each size."""
    module = Net(function).to(dtype)
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    found, before = [], len(exports)
    for columns in COLUMNS:
        x = torch.randn(2, columns, 4, dtype=dtype)
        ours, theirs = (wrapped(x), eager(x))
        torch.testing.assert_close(ours, theirs, **(tolerance or {"rtol": 1e-12, "atol": 0}))
        for loss, run in ((ours, module), (theirs, eager)):
            run.zero_grad()
            loss.backward()
        torch.testing.assert_close(
            module.l.weight.grad, eager.l.weight.grad, **(tolerance or {"rtol": 1e-9, "atol": 0})
        )
        assert wrapped.fallback_reason is None, wrapped.fallback_reason
        found.append(len(exports) - before)
    return found


@pytest.mark.parametrize("name", OPERANDS)
def test_one_graph_computes_it(name, exports):
    assert exports_for(OPERANDS[name], exports)[-1] == 1


@pytest.mark.parametrize("name", SIZES)
def test_one_graph_has_it_for_a_size(name, exports):
    assert exports_for(SIZES[name], exports)[-1] == 1


def test_a_range_in_steps_is_a_graph_of_as_many(exports):
    def blocks(x, n):
        return sum(x[:, place : place + 8].sum(1).sin() * (place + 1) for place in range(0, n, 8))

    for _ in range(20):
        blocks(torch.ones(1, 8, 4), 8)  # Python specializes its code meanwhile
    assert exports_for(blocks, exports) == [1, 2, 3, 3, 3, 4]


@pytest.mark.parametrize("name", ASKS)
def test_the_second_size_teaches_it(name, exports):
    assert exports_for(ASKS[name], exports)[-1] == 2


@pytest.mark.parametrize("name", EACH)
def test_each_size_has_its_own(name, exports):
    exports_for(EACH[name], exports)


@pytest.mark.parametrize("name", CLASSES)
def test_a_size_is_an_int_to_users_code(name, exports):
    assert exports_for(CLASSES[name], exports)[-1] == 1


@pytest.mark.parametrize("name", BY_TYPE)
def test_code_that_asks_for_its_type_gets_ints(name, exports):
    exports_for(BY_TYPE[name], exports)


def test_mistakes_with_classes_are_pythons(exports):
    def asks(*arguments):
        with pytest.raises(TypeError, match="isinstance"):
            isinstance(*arguments)
        return 1

    assert exports_for(lambda x, n: x * asks(n) * asks(n, 3) * asks(n, int, float), exports)[-1] == 1


@pytest.mark.parametrize("name", ["a quotient", "under a root", "an inverse"])
def test_in_f32_they_are_eagers_numbers(name, exports):
    exports_for(OPERANDS[name], exports, torch.float32, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["a quotient", "an inverse", "a product", "a sum", "a root", "a step"])
def test_sixteen_bits_keep_the_whole_number(name, exports):
    assert exports_for(OPERANDS[name], exports, torch.bfloat16, rtol=1e-2, atol=1e-3)[-1] == 1


def test_a_condition_is_an_index(exports):
    assert exports_for(lambda x, n: x * [3, 2][n > 8], exports)[-1] == 2


def test_what_dynamo_stumbles_over_is_pytorchs(monkeypatch):
    monkeypatch.setenv("LOWTIDE_PIECES", "1")
    module = Net(lambda x, n: x * [3, 2][n > 8] if x.mean() < 100 else x).double()
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    for columns in COLUMNS:
        x = torch.randn(2, columns, 4, dtype=torch.float64)
        torch.testing.assert_close(wrapped(x), eager(x), rtol=1e-12, atol=0)


def test_a_second_start_finds_the_graph(folder, exports):
    for _ in range(2):
        exports_for(OPERANDS["a root"], exports)
    assert len(graphs(folder)) == len(exports) == 1
