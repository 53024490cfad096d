"""torch.compile(…, backend="lowtide"): what stands within a checkpoint or a nested_compile_region of Dynamo's graph is
what it is outside; and checkpoints around what is compiled."""

import copy

import pytest
import torch
from modules import Doubled, assert_same_state
from torch.nn.functional import gelu
from torch.utils.checkpoint import checkpoint

from lowtide import compile_backend
from lowtide.ortmodule import ORTModule


class Net(torch.nn.Module):
    def __init__(self, body):
        super().__init__()
        self.up, self.down, self.body = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4), body

    def forward(self, x):
        return self.down(self.body(self.up(x), self.up.weight.detach() * 0.5))


def hooked(h, w):
    h = h * 2
    h.register_hook(lambda gradient: gradient * 3)
    return h.sin()


def writes_data(h, w):
    return h.data * h


def without_gradients(h, w):
    with torch.no_grad():
        scale = h.softmax(-1)
    return scale * h


@torch.compiler.nested_compile_region
def region(h):
    return h.sin(), h * 2


@torch.compiler.nested_compile_region
def region_of_regions(h, w):
    (a, b), (c, _) = region(h), region(h * 2)
    return without_gradients(a * b * c, w)


BODIES = {
    "a hook": hooked,
    "its data": writes_data,
    "a custom function": lambda h, w: Doubled.apply(h),
    "no gradients": without_gradients,
    "a checkpoint": lambda h, w: checkpoint(gelu, h, use_reentrant=False) * 2,
    "regions": region_of_regions,
}


def check(module, call, pieces):
    eager = copy.deepcopy(module)
    for seed in range(2):
        x = torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        ours, theirs = call(x), eager(x)
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
        ours.square().mean().backward()
        theirs.square().mean().backward()
    assert_same_state(module, eager)
    assert [piece.fallback_reason for piece in pieces] == [None]


@pytest.mark.parametrize("name", BODIES)
def test_within_a_checkpoint(name, pieces):
    torch.manual_seed(0)
    module = Net(lambda h, w: checkpoint(BODIES[name], h, w, use_reentrant=False)).double()
    check(module, torch.compile(module, backend=compile_backend.lowtide), pieces)


def test_autocast_within_a_checkpoint(pieces):
    def product(h, w):
        with torch.autocast("cpu", torch.bfloat16):
            return h @ w

    def call(h, w):
        return checkpoint(product, h, w, use_reentrant=False)

    torch.manual_seed(0)
    h, w = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8)
    found = torch.compile(call, backend=compile_backend.lowtide)(h, w)
    torch.testing.assert_close(found, call(h, w), rtol=0.02, atol=0.02)  # of the same dtype, too
    (gradient,) = torch.autograd.grad(found.float().sum(), h)
    assert torch.equal(gradient, gradient.bfloat16().float())
    assert [piece.fallback_reason for piece in pieces] == [None]


def test_within_nested_regions(pieces):
    torch.manual_seed(0)
    module = Net(lambda h, w: region_of_regions(h, w) + region_of_regions(h + 1, w)).double()
    check(module, torch.compile(module, backend=compile_backend.lowtide, fullgraph=True), pieces)


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_nested_regions_of_a_graph_that_pytorch_runs(pieces):
    """What is changed in place shares its memory with another argument."""

    def call(x, y):
        x.mul_(2)
        return (region(x)[0] * region(y)[1]).sum()

    found = []
    for each in (call, torch.compile(call, backend=compile_backend.lowtide)):
        leaf = torch.arange(6.0, dtype=torch.float64, requires_grad=True)
        x = leaf * 3
        each(x[:4], x[2:]).backward()
        found.append(leaf.grad)
    assert torch.equal(*found)
    assert pieces and all("shares its memory" in piece.fallback_reason for piece in pieces)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(8), torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(gelu(self.up(self.norm(x))))


class Blocks(torch.nn.Module):
    """One block three times, or three of them."""

    def __init__(self, blocks, reentrant):
        super().__init__()
        self.blocks, self.reentrant = torch.nn.ModuleList(blocks), reentrant

    def forward(self, x):
        for index in range(3):
            x = checkpoint(self.blocks[index % len(self.blocks)], x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("door", ["ORTModule", "torch.compile"])
def test_checkpoints_around_blocks(door, reentrant, pieces):
    """The first block's call runs again behind the last one's backward, and saves as many tensors as before."""
    torch.manual_seed(0)
    count = 3 if door == "torch.compile" else 1
    module = Blocks([Block() for _ in range(count)], reentrant).double()
    eager = copy.deepcopy(module)
    for index, block in enumerate(module.blocks):
        if door == "ORTModule":
            module.blocks[index] = ORTModule(block)
        else:
            block.compile(backend=compile_backend.lowtide)
    for _ in range(3):
        x = torch.randn(4, 8, dtype=torch.float64).requires_grad_()
        for each in (module, eager):
            each(x).square().mean().backward()
    torch.testing.assert_close(
        [parameter.grad for parameter in module.parameters()], [parameter.grad for parameter in eager.parameters()]
    )
    assert all(piece.fallback_reason is None for piece in pieces)
