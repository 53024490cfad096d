"""An output that is a view of an argument: a view of the caller's tensor, however that lies in memory. Of one that did
not lie row by row it once showed other elements."""

import pytest
import torch

from lowtide.compile_backend import lowtide
from lowtide.ortmodule import ORTModule

LAYOUTS = {
    "rows": lambda x: x,
    "every second": lambda x: torch.cat([x, x])[::2],
    "columns": lambda x: torch.cat([x, x], 1)[:, 2:6],
    "one row many times": lambda x: x[:1].expand(6, 4),
    "one element many times": lambda x: x[0, 0].expand(6, 4),
    "turned": lambda x: x.t().contiguous().t(),
    "flipped": lambda x: x.flip(0),
}
VIEWS = {
    "later rows": lambda x: x[2:],
    "turned": lambda x: x.t(),
    "a column": lambda x: x[:, 1],
    "in one row": lambda x: x.reshape(-1)[3:],
    "as four": lambda x: x.unflatten(0, (2, 3)).transpose(1, 2)[1],
}


class Viewing(torch.nn.Module):
    def __init__(self, view):
        super().__init__()
        self.linear, self.view = torch.nn.Linear(4, 4), view

    def forward(self, x):
        return self.linear(x), self.view(x)


def layouts(takes_gradient):
    for name, layout in LAYOUTS.items():
        base = torch.arange(24, dtype=torch.float64).view(6, 4).requires_grad_(takes_gradient)
        yield name, base, layout(base)


@pytest.mark.parametrize("takes_gradient", [False, True])
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("door", [ORTModule, lambda module: torch.compile(module, backend=lowtide)])
def test_views_are_of_the_callers_tensor(door, view, takes_gradient):
    torch.compiler.reset()
    module = Viewing(view).double()
    wrapped = door(module)
    for name, base, x in layouts(takes_gradient):
        (result, found), (expected_result, expected) = wrapped(x), module(x)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=name)
        torch.testing.assert_close(result, expected_result, rtol=1e-12, atol=1e-12, msg=name)
        shares, as_expected = (
            y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for y in (found, expected)
        )
        assert shares == as_expected, name
        if shares:
            assert found.stride() == expected.stride() and found.storage_offset() == expected.storage_offset(), name
        if takes_gradient:
            weight = torch.randn_like(expected)
            gradients = torch.autograd.grad((found * weight).sum() + result.sum(), base, retain_graph=True)
            others = torch.autograd.grad((expected * weight).sum() + expected_result.sum(), base, retain_graph=True)
            torch.testing.assert_close(gradients, others, rtol=1e-10, atol=1e-12, msg=name)


class Beginning(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x, rows):
        return self.linear(x), x[: rows.item()]


def test_a_view_whose_size_is_data_shows_what_it_would():
    module = Beginning().double()
    wrapped = ORTModule(module)
    for name, _, x in layouts(takes_gradient=False):
        for rows in (2, 5):
            found, expected = (each(x, torch.tensor(rows))[1] for each in (wrapped, module))
            torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=name)
    assert wrapped.fallback_reason is None
