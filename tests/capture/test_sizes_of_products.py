"""A model that asks for a product of free sizes to be a number: a mask of patches in two dims beside patches in one."""

import torch

from lowtide.ortmodule import DebugOptions, ORTModule


class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Conv2d(3, 4, 2, stride=2)
        self.token = torch.nn.Parameter(torch.randn(1, 1, 4))

    def forward(self, pixels, mask):
        patches = self.project(pixels).flatten(2).transpose(1, 2)
        mask = mask.view(mask.size(0), -1).unsqueeze(-1).type_as(patches)
        return (patches * (1.0 - mask) + self.token * mask).square().sum()


class Chosen(Masked):
    """The rows that the mask takes, too: how many there are depends on data."""

    def forward(self, pixels, mask):
        patches = self.project(pixels).flatten(2).transpose(1, 2)
        return patches[mask.view(mask.size(0), -1)].square().sum() + self.token.sum()


def _trains_as_eager(module, calls):
    torch.manual_seed(0)
    eager = module().double()
    ours = ORTModule(eager, DebugOptions())
    for batch, side in calls:
        pixels = torch.randn(batch, 3, 2 * side, 2 * side, dtype=torch.float64)
        mask = torch.rand(batch, side, side) > 0.5
        eager.zero_grad()
        expected = eager(pixels, mask)
        expected.backward()
        grads = [p.grad.clone() if p.grad is not None else None for p in eager.parameters()]
        eager.zero_grad()
        loss = ours(pixels, mask)
        assert ours.fallback_reason is None
        loss.backward()
        torch.testing.assert_close(loss, expected)
        for found, grad in zip(eager.parameters(), grads, strict=True):
            torch.testing.assert_close(found.grad, grad)


def test_a_mask_in_two_dims_fits_patches_in_one():
    _trains_as_eager(Masked, [(3, 4), (2, 4), (3, 6)])


def test_rows_of_a_mask_in_two_dims():
    _trains_as_eager(Chosen, [(3, 4), (2, 4), (3, 6)])
