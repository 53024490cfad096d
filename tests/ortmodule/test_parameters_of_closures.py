"""Parameters that forward reads through a function around it, and a copy of the module does not have."""

import copy

import torch

from lowtide.ortmodule import ORTModule


class Shared(torch.nn.Module):
    """One layer under two names."""

    def __init__(self):
        super().__init__()
        layer = torch.nn.Linear(4, 4)
        self.blocks = torch.nn.Sequential(torch.nn.Sequential(layer), torch.nn.Sequential(layer))

    def forward(self, x):
        return self.blocks(x)


class Calling(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.shared = torch.nn.Linear(4, 4), Shared()
        shared = self.shared
        self.call = lambda x: shared(x)

    def forward(self, x):
        return self.call(self.up(x).tanh()).square().sum()


def test_a_copy_trains_with_the_layer_of_the_module_that_it_is_of():
    """Of the layer's second name among those that are none of the copy's, one was looked for in it: a bug."""
    made = Calling().double()
    theirs, module = copy.deepcopy(made), copy.deepcopy(made)
    ours = ORTModule(module)
    for rows in (3, 3, 5):
        x, found = torch.randn(rows, 4, dtype=torch.float64), []
        for each in (theirs, ours):
            made.zero_grad()
            each.zero_grad()
            loss = each(x)
            loss.backward()
            layer = made.shared.blocks[0][0]
            found.append(
                [loss.detach(), layer.weight.grad, layer.bias.grad, *(one.grad for one in each.up.parameters())]
            )
        torch.testing.assert_close(*found)
    assert ours.fallback_reason is None
