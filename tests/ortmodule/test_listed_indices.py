"""Indices that are lists of single numbers, each a tensor, as UDOP marks the patches under words."""

import copy

import torch

from lowtide.ortmodule import ORTModule


class Patches(torch.nn.Module):
    """`places`: (batch, words), the patch that a word lies on."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, patches, places):
        h = self.fc(patches)
        batch = torch.arange(len(places))[:, None].expand_as(places)
        rows, columns = zip(*torch.stack([batch, places], -1).flatten(0, 1), strict=True)
        free = torch.ones_like(h[:, :, 0], dtype=torch.bool)
        free[rows, columns] = False
        chosen = h[list(rows), columns]
        return (h.square() * free[..., None]).sum() + chosen.pow(3).sum()


def test_lists_of_numbers_are_indices_of_one_graph():
    torch.manual_seed(0)
    net = Patches().double()
    wrapped = ORTModule(copy.deepcopy(net))
    for batch in (2, 3, 2):
        patches, places = torch.randn(batch, 6, 4, dtype=torch.float64), torch.randint(6, (batch, 3))
        losses = [module(patches, places) for module in (net, wrapped)]
        for loss in losses:
            loss.backward()
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-12, atol=0)
        assert wrapped.fallback_reason is None
    for ours, theirs in zip(wrapped.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=0)
