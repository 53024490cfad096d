"""`x[mask, index] = value`: there are as many places in the mask as in the index."""

import pytest
import torch
from torch import nn

from lowtide import compile_backend
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule


class _Targets(nn.Module):
    """One-hot rows of the foreground, as a detector's loss makes them."""

    def __init__(self, values):
        super().__init__()
        self.classify, self.values = nn.Linear(4, 5), values

    def forward(self, x, foreground, labels):
        logits = self.classify(x)
        targets = torch.zeros_like(logits)
        targets[foreground, labels] = self.values(labels)
        return nn.functional.binary_cross_entropy_with_logits(logits, targets)


def _one(labels):
    return 1.0


def _of_each(labels):
    return labels.double() / 4


@pytest.mark.parametrize("values", [_one, _of_each])
@pytest.mark.parametrize("door", ["wrapper", "compile"])
def test_a_mask_and_an_index_choose_the_same_places(values, door):
    torch.manual_seed(0)
    eager, model = _Targets(values).double(), _Targets(values).double()
    model.load_state_dict(eager.state_dict())
    if door == "wrapper":
        module = ORTModule(model, DebugOptions(log_level=LogLevel.ERROR))
    else:
        module = torch.compile(model, backend=compile_backend.lowtide)
    for rows in (6, 7, 9):
        foreground = torch.arange(rows) % 3 != 0
        arguments = torch.randn(rows, 4).double(), foreground, torch.randint(5, (int(foreground.sum()),))
        expected, found = eager(*arguments), module(*arguments)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
        expected.backward()
        found.backward()
    torch.testing.assert_close(model.classify.weight.grad, eager.classify.weight.grad)
