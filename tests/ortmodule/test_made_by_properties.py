"""A container that a property of a module makes anew at each read. What forward asks was looked through for what it may
change, and held; the tensors in it then seemed to be kept by forward."""

import torch
from modules import check


class Partial(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(4, 4)
        self.register_buffer("loc", torch.zeros(4))

    @property
    def options(self):
        return {"loc": self.loc + 1, "parts": [self.body.weight * 2, {"bias": self.body.bias * 3}]}

    def forward(self, x):
        weight, others = self.options["parts"]
        return (torch.nn.functional.linear(x, weight, others["bias"]) - self.options["loc"]).sin().sum()


def test_what_a_property_makes_is_not_kept():
    check(Partial().double(), torch.randn(3, 4, dtype=torch.float64), steps=3)
