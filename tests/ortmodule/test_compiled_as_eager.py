"""Where forward asks whether it is compiled, and has no graph if it is, it has one as eager runs it. (LongT5 makes its
mask of local attention in eager only: eleven pieces.)"""

import copy

import pytest
import torch

from lowtide.ortmodule import ORTModule


class MakesItsMask(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 8)

    def forward(self, x, mask=None):
        if mask is None and not torch.compiler.is_compiling():
            mask = torch.ones_like(x)
        return self.fc(x * mask.square()).square().sum()


class TellsWhenCompiled(MakesItsMask):
    """As many models skip what only checks, if that asks for data."""

    def forward(self, x, mask=None):
        if not torch.compiler.is_compiling() and self.fc(x).mean() > 1e9:
            raise ValueError
        return self.fc(x).square().sum()


class MakesItsMaskForExport(MakesItsMask):
    """transformers' masks: none where none is needed, but one for an export. Informer's encoder halves its sequence
    and then refuses it: fifteen pieces."""

    def forward(self, x, mask=None):
        if torch.compiler.is_exporting():
            mask = torch.ones(len(x) + 1, 1)
        if mask is not None and len(mask) != len(x):
            raise ValueError(f"a mask of {len(x)} rows was expected, found {len(mask)}")
        return self.fc(x).square().sum()


@pytest.mark.parametrize("make", [MakesItsMask, TellsWhenCompiled, MakesItsMaskForExport])
def test_one_graph(make):
    model = make().double()
    models, x, found = (model, ORTModule(copy.deepcopy(model))), torch.randn(3, 8, dtype=torch.float64), []
    for each in models:
        loss = each(x)
        loss.backward()
        found.append([loss.detach(), [parameter.grad for parameter in each.parameters()]])
    torch.testing.assert_close(*found)
    assert models[1].fallback_reason is None


def test_a_module_without_a_graph_either_way():
    class Branches(MakesItsMask):
        def forward(self, x, mask=None):
            torch.compiler.is_compiling()
            return self.fc(x).square().sum() if self.fc(x).mean() > 0 else self.fc(x).sum()

    model = ORTModule(Branches())
    with pytest.warns(match="branches on data"):
        model(torch.randn(3, 8)).backward()
