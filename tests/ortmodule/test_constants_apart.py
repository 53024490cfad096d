"""Numbers that compare equal, or in no order, are constants of their own: beside a nan each constant of its dtype had
its bytes, and -0.0 had those of 0.0."""

import copy

import torch

from lowtide.ortmodule import ORTModule


class Filled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        h = self.fc(x)
        nan = torch.where(h > 0, h, float("nan"))
        two, three = torch.scalar_tensor(2.0, dtype=x.dtype), torch.scalar_tensor(3.0, dtype=x.dtype)
        signs = [h.detach().square() * torch.full((), zero, dtype=x.dtype) for zero in (0.0, -0.0)]
        return nan, torch.maximum(h, two), torch.minimum(h, three), *(1 / sign for sign in signs)


def test_nan_and_zeros_beside_other_numbers():
    model = Filled().double()
    models, x, found = (model, ORTModule(copy.deepcopy(model))), torch.randn(3, 4, dtype=torch.float64), []
    for each in models:
        outputs = each(x)
        sum(output.nansum() for output in outputs[:3]).backward()
        found.append([outputs, [parameter.grad for parameter in each.parameters()]])
    torch.testing.assert_close(*found, equal_nan=True)
    assert models[1].fallback_reason is None
