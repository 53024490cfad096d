"""Forms in which models call scatters, windows and losses: natively, beside eager."""

import copy

import pytest
import torch
import torch.nn.functional as F
from calls_beside_eager import Call, beside_eager, indices, leaf
from torch import nn

from lowtide.ortmodule import ORTModule


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize("expanded", [False, True])
def test_scatter_reduce(reduce, include_self, expanded):
    """Rows 4 and 5 are never named; updates tie with each other and with the old entries."""
    index = indices(4, 12, 1).expand(-1, 3) if expanded else indices(4, 12, 3)
    source = leaf(12, 3).detach().round().requires_grad_()
    old = torch.zeros(6, 3, dtype=torch.float64)
    old[0], old[5] = 1, -2
    beside_eager(
        lambda x, y, i: y.scatter_reduce(0, i, x, reduce, include_self=include_self),
        source,
        old.requires_grad_(),
        index,
    )


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_extremes_of_nan(reduce):
    source = leaf(12, 3).detach()
    source[3], source[7, 1] = float("nan"), float("inf")
    index = indices(4, 12, 3)
    call = Call(lambda x, y, i: y.scatter_reduce(0, i, x, reduce, include_self=False))
    with torch.no_grad():
        found = ORTModule(call)(source, torch.zeros(6, 3, dtype=torch.float64), index)
    wanted = call(source, torch.zeros(6, 3, dtype=torch.float64), index)
    torch.testing.assert_close(found, wanted, equal_nan=True)


def test_index_add_onto_a_tensor_of_constant_size():
    """The exporter left the width of what is added free, beside the constant that it has to be: a bug report."""

    def add(x, i):
        return torch.zeros(10, 4, dtype=torch.float64).index_add(0, i, x)

    engine = beside_eager(add, leaf(6, 4), indices(10, 6))
    beside_eager(add, leaf(9, 4), indices(10, 9), engine=engine)
    with pytest.raises((IndexError, RuntimeError)):
        engine(leaf(9, 5), indices(10, 9))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_index_add_along(dim):
    sizes = [5, 6, 7]
    sizes[dim] = 11
    beside_eager(
        lambda x, y, i: y.index_add(dim, i, x, alpha=0.5), leaf(*sizes), leaf(5, 6, 7), indices([5, 6, 7][dim], 11)
    )


@pytest.mark.parametrize("padding", [0, (1, 2)])
@pytest.mark.parametrize("stride", [1, (2, 3)])
@pytest.mark.parametrize("dilation", [1, (2, 1)])
def test_windows_of_images(padding, stride, dilation):
    terms = {"padding": padding, "stride": stride, "dilation": dilation}
    image = leaf(2, 3, 8, 9)
    beside_eager(lambda x: F.unfold(x, (3, 2), **terms), image)
    columns = F.unfold(image, (3, 2), **terms).detach().requires_grad_()
    beside_eager(lambda x: F.fold(x, (8, 9), (3, 2), **terms), columns)
    beside_eager(lambda x: F.fold(x, (8, 9), (3, 2), **terms), columns[0].detach().requires_grad_())


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_nll_of_a_log_softmax(reduction, weighted):
    weight = torch.linspace(0.5, 1.5, 5, dtype=torch.float64) if weighted else None
    target = indices(5, 2, 3, 4)
    target[0, 1] = 2

    def loss(x, y):
        return F.nll_loss(x.log_softmax(1), y, weight, reduction=reduction, ignore_index=2)

    beside_eager(loss, leaf(2, 5, 3, 4), target)
    beside_eager(loss, leaf(2, 5, 3, 4), torch.full_like(target, 2))


@pytest.mark.parametrize("loss", [F.huber_loss, F.smooth_l1_loss])
@pytest.mark.parametrize("knee", [0.3, 1.0])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_losses_with_a_knee(loss, knee, reduction):
    x, y = leaf(3, 40), leaf(3, 40, seed=1)
    with torch.no_grad():
        x[0, 0], x[0, 1], x[0, 2], x[0, 3] = y[0, 0] + knee, y[0, 1], float("inf"), float("nan")
    name = "delta" if loss is F.huber_loss else "beta"
    beside_eager(lambda a, b: loss(a, b, reduction=reduction, **{name: knee}), x, y)


def test_convolution_of_places_in_three_dims():
    beside_eager(lambda x, w, b: F.conv3d(x, w, b), leaf(2, 4, 3, 5, 6), leaf(6, 4, 1, 1, 1, seed=1), leaf(6, seed=2))


@pytest.mark.parametrize("size", [(8, 10), (7, 9), (12, 15), (2, 3)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_nearest_of_floats(size, layout):
    call = Call(lambda x: F.interpolate(x, size=size, mode="nearest"))
    x = leaf(2, 3, 4, 5).detach().float().contiguous(memory_format=layout)
    mine, theirs = (x.clone(memory_format=torch.preserve_format).requires_grad_() for _ in range(2))
    for function, argument in ((ORTModule(call), mine), (call, theirs)):
        output = function(argument)
        output.backward(torch.linspace(0, 1, output.numel()).view(output.shape))
        argument.result = output.detach()
    assert torch.equal(mine.result, theirs.result)
    torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize("patches", [2, 3])
def test_a_patch_embedding_alone(patches):
    module = nn.Conv2d(3, 8, patches, patches, dtype=torch.float64)
    engine, x = ORTModule(copy.deepcopy(module)), leaf(2, 3, 6, 12).detach()
    mine, theirs = engine(x), module(x)
    torch.testing.assert_close(mine, theirs)
    for output in (mine, theirs):
        output.square().sum().backward()
    for one, other in zip(engine.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
