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


class Tiled(torch.nn.Module):
    """An image is two tiles of rows, as a table says, and a mask in three dims has a row for each (mllama)."""

    def __init__(self):
        super().__init__()
        self.shift = torch.nn.Embedding(4, 2 * 8)
        self.project = torch.nn.Linear(8, 8)

    def forward(self, rows, kinds, tiles):
        images = kinds.shape[0] * kinds.shape[1]
        rows = rows.reshape(images, 2, -1, 8) + self.shift(kinds.reshape(images)).reshape(images, 2, 1, 8)
        hidden = self.project(rows.reshape(images, -1, 8)).view(images, -1, 2, 4).transpose(1, 2)
        seen = tiles.reshape(images, -1)
        seen = seen.view(images, seen.shape[1], 1, 1).to(rows.dtype).repeat(1, 1, 3, 1).reshape(images, -1, 1)
        hidden_rows = (1 - seen) @ (1 - seen).transpose(-1, -2) * -1e9
        attended = torch.nn.functional.scaled_dot_product_attention(hidden, hidden, hidden, hidden_rows.unsqueeze(1))
        return attended.square().sum()


def _patches(batch, side):
    pixels = torch.randn(batch, 3, 2 * side, 2 * side, dtype=torch.float64)
    return pixels, torch.rand(batch, side, side) > 0.5


def _tiles(batch, images):
    rows = torch.randn(batch, images, 2, 3, 8, dtype=torch.float64)
    return rows, torch.randint(4, (batch, images)), torch.tensor([1, 0]).expand(batch, images, 2).clone()


def _trains_as_eager(module, calls, arguments=_patches):
    torch.manual_seed(0)
    eager = module().double()
    ours = ORTModule(eager, DebugOptions())
    for sizes in calls:
        given = arguments(*sizes)
        eager.zero_grad()
        expected = eager(*given)
        expected.backward()
        grads = [p.grad.clone() if p.grad is not None else None for p in eager.parameters()]
        eager.zero_grad()
        loss = ours(*given)
        assert ours.fallback_reason is None
        loss.backward()
        torch.testing.assert_close(loss, expected)
        for found, grad in zip(eager.parameters(), grads, strict=True):
            torch.testing.assert_close(found.grad, grad)


def test_a_mask_in_two_dims_fits_patches_in_one():
    _trains_as_eager(Masked, [(3, 4), (2, 4), (3, 6)])


def test_rows_of_a_mask_in_two_dims():
    _trains_as_eager(Chosen, [(3, 4), (2, 4), (3, 6)])


def test_a_mask_in_three_dims_has_as_many_rows_as_attention():
    _trains_as_eager(Tiled, [(3, 1), (2, 1), (3, 2)], _tiles)
