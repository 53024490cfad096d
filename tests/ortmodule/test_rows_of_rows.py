"""Elements of rows that are themselves chosen by data: their number is bounded by more than 64 bits hold."""

import torch
from modules import Of, check


def chosen_twice(module, rows):
    chosen = rows[rows[:, 0] > 0]
    wide = chosen.repeat(1, 4)
    return module.l(rows) * wide[wide > -10.0].exp().sum()


def test_elements_of_rows_that_data_chose():
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    check(Of(chosen_twice).double(), rows, tolerance={"rtol": 1e-9, "atol": 1e-12})
