"""Writes by masks among the arguments, whose sizes nothing else ties to those of what is written."""

import copy

import pytest
import torch

from lowtide.ortmodule import ORTModule


def into_an_argument(m, x, mask):
    x[mask] = 0.0
    x.mul_(2)
    return m.layer(x)


def into_columns(m, x, mask):
    x = x * 1.0
    x[..., mask[0]] = 1.5
    return m.layer(x)


def behind_a_slice(m, x, mask):
    x = x * 1.0
    x[1:, mask[0]] = 0.25
    return m.layer(x)


def by_index_put(m, x, mask):
    return m.layer(x.index_put((mask,), x.new_tensor(0.5)) + x.index_put([mask], x.new_tensor(1.0), accumulate=True))


def rows_of_another(m, x, mask):
    y = m.layer(x)
    y[mask[:, 0]] = x[mask[:, 0]][:, :3]
    return y


def of_another(m, x, mask):
    y = m.layer(x).repeat(1, 2)[:, :4]
    y[mask[:, 0]] = x[mask[:, 0]]
    return y


def selected(m, x, mask):
    return torch.masked_select(m.layer(x).repeat(1, 2)[:, :4], mask)


def selected_by_rows(m, x, mask):
    return m.layer(x).masked_select(mask[:, :1])


class Masked(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3, dtype=torch.float64)
        self.function = function

    def forward(self, x, mask):
        return self.function(self, x, mask)


WRITES = [into_an_argument, into_columns, behind_a_slice, by_index_put, rows_of_another, of_another]


@pytest.mark.parametrize("function", [*WRITES, selected, selected_by_rows])
def test_a_mask_has_the_sizes_of_what_it_chooses_from(function):
    module = Masked(function)
    wrapped = ORTModule(copy.deepcopy(module))
    for rows in (3, 5, 2):
        generator = torch.Generator().manual_seed(rows)
        x = torch.randn(rows, 4, dtype=torch.float64, generator=generator)
        mask = torch.rand(rows, 4, generator=generator) > 0.5
        found = []
        for model in (module, wrapped):
            given = x.clone()
            model.zero_grad()
            out = model(given, mask)
            out.square().sum().backward()
            found.append([out, given, *(p.grad for p in model.parameters())])
        torch.testing.assert_close(found[1], found[0])
        assert wrapped.fallback_reason is None
    assert wrapped.transition_counts()["in training mode"] == {"first call": 1}
