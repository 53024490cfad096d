"""Classes of modules that register their subclasses under a name, as tensorly's factorized tensors do: the exporter
makes subclasses of its own, without one."""

import torch
from modules import check

KINDS = {}


class Factorized(torch.nn.Module):
    def __init_subclass__(cls, name, **keywords):
        super().__init_subclass__(**keywords)
        KINDS[name] = cls


class Dense(Factorized, name="dense"):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return x @ self.weight


class Counted(torch.nn.Module):
    made = []

    def __init_subclass__(cls):
        Counted.made.append(cls)


class Doubled(Counted):
    def forward(self, x):
        return x * 2


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Dense(), Doubled()

    def forward(self, x):
        return self.second(self.first(x)).sum()


def test_the_exporters_are_not_told():
    check(Model().double(), torch.randn(3, 4, dtype=torch.float64))
    assert KINDS == {"dense": Dense}
    assert Counted.made == [Doubled]
