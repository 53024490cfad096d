"""Integer tensors with a row of sizes for each image, as qwen2_vl has: constants of the graphs of the submodule that
reads them, compared in each call."""

import copy

import pytest
import torch

from lowtide.ortmodule import ORTModule

pytestmark = [pytest.mark.usefixtures("with_pieces"), pytest.mark.filterwarnings("ignore:.*runs in pieces")]


class Tower(torch.nn.Module):
    """Patches of images of several sizes: loops over numbers, sizes, a mask and an index that tables tell."""

    def __init__(self):
        super().__init__()
        self.up, self.rows = torch.nn.Linear(8, 8), torch.nn.Embedding(16, 8)

    def forward(self, patches, grid):
        counts = grid[:, 0] * grid[:, 1]
        ends = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        places = torch.cat([torch.arange(h).repeat_interleave(w) for h, w in grid.tolist()])
        even = torch.arange(counts.sum())
        even = even[even % 2 == 0]
        h = self.up(patches) + self.rows(places)
        parts = [part.softmax(0) for part in h.split((ends[1:] - ends[:-1]).tolist())]
        return torch.cat([part * (i + 1) for i, part in enumerate(parts)])[even], counts.to(torch.float64).sqrt()


class Net(torch.nn.Module):
    def __init__(self, tower=Tower):
        super().__init__()
        self.tower, self.down = tower(), torch.nn.Linear(8, 4)

    def forward(self, patches, grid):
        features, roots = self.tower(patches, grid)
        out = self.down(features).sum()
        return out * roots.sum() if features.mean() > -100 else out


def pair(tower=Tower):
    torch.manual_seed(0)
    module = Net(tower).double()
    return ORTModule(module), copy.deepcopy(module)


def call_of(*grid):
    grid = torch.tensor(grid)
    return torch.randn(int(grid.prod(-1).sum()), 8, dtype=torch.float64), grid


def assert_same_step(wrapped, module, call):
    grid = call[1].clone()
    for net in (wrapped, module):
        net.zero_grad()
    loss, expected = wrapped(*call), module(*call)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    for own, other in zip(wrapped.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-9, atol=1e-12)
    assert torch.equal(call[1], grid)


def test_submodule_that_reads_a_table_is_one_piece():
    wrapped, module = pair()
    for grid in (((2, 3), (4, 2)), ((2, 3), (4, 2)), ((4, 2), (2, 3)), ((3, 3),), ((2, 3), (4, 2))):
        assert_same_step(wrapped, module, call_of(*grid))
        assert wrapped.fallback_reason.startswith("3 of 3 pieces in the engine"), wrapped.fallback_reason


def test_table_that_is_changed_in_place_is_compared_again():
    wrapped, module = pair()
    patches, grid = call_of((2, 3), (4, 2))
    assert_same_step(wrapped, module, (patches, grid))
    grid.copy_(torch.tensor([(4, 2), (2, 3)]))
    assert_same_step(wrapped, module, (patches, grid))
    assert wrapped.fallback_reason.startswith("3 of 3 pieces in the engine")


class Writing(Tower):
    def forward(self, patches, grid):
        ends = grid.prod(-1)
        h = self.up(patches) * ends.sum() + len(grid.tolist())
        ends[0] = 0  # after the graph has had it
        return h * (ends.sum() + 1), (ends + h.detach().sum()).float()


class Drawing(Tower):
    def forward(self, patches, grid):
        noise = torch.rand(int(grid.prod(-1).sum()), 1, dtype=torch.float64)
        return self.up(patches) * noise * torch.rand_like(grid[0, 0] * 1.0, dtype=torch.float64), grid.double()


class WritingItsArgument(Tower):
    def forward(self, patches, grid):
        grid.add_(1)
        return self.up(patches) * sum(grid[0].tolist()), grid.double()


@pytest.mark.parametrize("tower", (Writing, WritingItsArgument))
def test_what_is_written_is_not_frozen(tower):
    wrapped, module = pair(tower)
    patches, grid = call_of((2, 3), (4, 2))
    for _ in range(3):
        for net in (wrapped, module):
            net.zero_grad()
        own, other = grid.clone(), grid.clone()
        loss, expected = wrapped(patches, own), module(patches, other)
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
        assert torch.equal(own, other)


class Keeping(Tower):
    widest = 0

    def forward(self, patches, grid):
        self.widest = int(grid.max())
        return self.up(patches) * self.widest, grid.double()


def test_number_of_a_table_that_is_kept_is_that_of_the_last_call():
    wrapped, module = pair(Keeping)
    for grid in (((2, 3), (4, 2)), ((3, 3),), ((2, 3), (4, 2)), ((3, 3),)):
        assert_same_step(wrapped, module, call_of(*grid))
        assert wrapped.tower.widest == module.tower.widest == max(map(max, grid))


def test_draws_are_not_frozen():
    wrapped, _ = pair(Drawing)
    call = call_of((2, 3), (4, 2))
    assert len({wrapped(*call).item() for _ in range(4)}) == 4


def test_hooked_submodule_is_left_to_dynamo():
    wrapped, module = pair()
    for net in (wrapped, module):
        net.tower.register_forward_hook(lambda module, args, output: (output[0] * 3, output[1]))
    for _ in range(2):
        assert_same_step(wrapped, module, call_of((2, 3), (4, 2)))
