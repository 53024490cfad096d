"""In-place ops that have no functional form of the same name: fill_diagonal_ (metric learning masks itself out by it),
float_power_. A step said that PyTorch knows no operator aten::fill_diagonal.default."""

import pytest
import torch
from modules import Of, check

WRITES = {
    "square": lambda y: y[:3].fill_diagonal_(2.0),
    "wide": lambda y: y.sin().fill_diagonal_(2.0),
    "tall": lambda y: y.t().sin().fill_diagonal_(2.0),
    "tall, wrapped": lambda y: y.t().sin().fill_diagonal_(2.0, wrap=True),
    "wide, wrapped": lambda y: y.sin().fill_diagonal_(2.0, wrap=True),
    "three dims": lambda y: (y[:, :3, None] * y[0, :3]).fill_diagonal_(-1.0),
    "bool": lambda y: y.masked_fill((y > 0).fill_diagonal_(False), 1.0),
    "float_power of a number": lambda y: (y.sigmoid() + 1).float_power_(3),
    "float_power of a tensor": lambda y: (y.sigmoid() + 1).float_power_(y.cos()),
}


@pytest.mark.parametrize("name", WRITES)
def test_outputs_and_gradients_are_eagers(name):
    module = Of(lambda m, x: WRITES[name](torch.cat([m.l(x), m.l(x) * 2], 1)).sin().sum()).double()
    check(module, torch.randn(3, 4, dtype=torch.float64))
