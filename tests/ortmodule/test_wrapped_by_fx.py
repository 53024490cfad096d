"""Globals that torch.fx.wrap names, and Python's own. While the exporter traces, its tracer has functions of its own in
their places: a module that was reached in the trace seemed to have changed them."""

import torch
import wrapped_by_fx
from modules import check


class Positions:
    def __call__(self, x):
        return wrapped_by_fx.halves(x.shape[-1])


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(4, 4)

    @property
    def positions(self):
        return Positions()

    def forward(self, x):
        return (self.body(x) + self.positions(x)).sin().sum()


def test_no_global_has_changed():
    wrapped = check(Model().double(), torch.randn(3, 4, dtype=torch.float64), steps=3)
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1}}


class Reads:
    def __call__(self, x):
        return wrapped_by_fx.builtin("float")(2) * x


class Builtins(Model):
    @property
    def positions(self):
        return Reads()


def test_no_builtin_has_changed():
    check(Builtins().double(), torch.randn(3, 4, dtype=torch.float64), steps=2)
