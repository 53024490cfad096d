"""Pieces that write a tensor's data. Autograd does not see what is written so, and what waits for backward may have
been read before: it was told of a write, and refused its backward."""

import pytest
import torch
from modules import same_through_both_doors

pytestmark = pytest.mark.usefixtures("with_pieces")


class Put(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, value, row):
        ctx.row = row
        if row == 7:
            print(row)
        rows.data[row] = value
        return rows

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient[ctx.row], None


class Stages(torch.nn.Module):
    """Of a Runge-Kutta step, as torchdiffeq has it: each reads the rows of those before."""

    def __init__(self):
        super().__init__()
        self.slope = torch.nn.Linear(4, 4)

    def forward(self, x):
        rows = torch.empty(3, *x.shape, dtype=x.dtype)
        for row in range(3):
            rows = Put.apply(rows, self.slope(x).tanh(), row)
            torch._dynamo.graph_break()
            x = x + (rows[: row + 1] * 0.5).sum(dim=0)
        return (x * x).sum()


class Follows(torch.nn.Module):
    """A row of a buffer of which forward has read another one for backward; the piece reads it too."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(4, 4)
        self.register_buffer("rows", torch.full((2, 4), 0.5))

    def forward(self, x):
        y = self.body(x) * self.rows[0]
        if y.sum() > 1e6:
            y = y / 2
        self.rows.data[1] = y.detach().mean(dim=0)
        return (y + self.rows[1].sum()).square().sum()


@pytest.mark.parametrize("cls", [Stages, Follows])
def test_writes_that_autograd_does_not_see(cls):
    same_through_both_doors(cls, (2, 2, 3))
