"""Parameters without elements that take part have a gradient without elements, and no None: optimizers and checks of
unused parameters ask."""

import copy

import torch

from lowtide.ortmodule import ORTModule


class Prompted(torch.nn.Module):
    """Zero learned rows before those of the input, as of a prompt whose length is an option."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(4, 4)
        self.prompt = torch.nn.Parameter(torch.empty(0, 4))
        self.flat = torch.nn.Parameter(torch.empty(0))
        self.wide = torch.nn.Parameter(torch.empty(3, 0))
        self.unused = torch.nn.Parameter(torch.empty(0))

    def forward(self, x):
        h = torch.cat([self.prompt * 2, self.up(x)])
        return torch.cat([self.flat, h.flatten()]).square().sum() + self.wide.sum()


def test_gradients_are_as_empty_as_parameters():
    module = Prompted().double()
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    x = torch.randn(2, 4, dtype=torch.float64)
    for run in (eager, wrapped):
        run(x).backward()
    assert wrapped.fallback_reason is None
    for (name, found), want in zip(module.named_parameters(), eager.parameters(), strict=True):
        assert (found.grad is None) == (want.grad is None) == (name == "unused"), name
        if want.grad is not None:
            torch.testing.assert_close(found.grad, want.grad, rtol=1e-12, atol=0)
