"""Adaptive pools beside eager, natively where their windows differ in size too."""

import pytest
import torch
import torch.nn.functional as F
from calls_beside_eager import Call, beside_eager, leaf

from lowtide.ortmodule import ORTModule


@pytest.mark.parametrize("size", [(7, 9), (8, 6), (3, 2)])
@pytest.mark.parametrize("out", [(3, 2), (5, None), (1, 4), (4, 11)])
def test_means_of_images(size, out):
    beside_eager(lambda x: F.adaptive_avg_pool2d(x, out), leaf(2, 3, *size))
    beside_eager(lambda x: F.adaptive_avg_pool2d(x, out), leaf(3, *size))


@pytest.mark.parametrize("out", [1, 3, 4])
def test_means_of_lines(out):
    beside_eager(lambda x: F.adaptive_avg_pool1d(x, out), leaf(2, 3, 10))


@pytest.mark.parametrize("out", [(2, 3, 4), (3, 2, 5), (5, 1, 3)])
def test_means_of_volumes(out):
    beside_eager(lambda x: F.adaptive_avg_pool3d(x, out), leaf(2, 3, 5, 6, 7))


def test_one_graph_for_many_sizes():
    engine = None
    for height, width in ((9, 7), (10, 12), (5, 13)):
        engine = beside_eager(lambda x: F.adaptive_avg_pool2d(x, (4, 3)), leaf(2, 3, height, width), engine=engine)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_means_of_images_in_both_layouts(dtype, layout):
    call = Call(lambda x: F.adaptive_avg_pool2d(x, (4, 3)))
    x = leaf(2, 5, 9, 7).detach().to(dtype).contiguous(memory_format=layout)
    mine, theirs = (x.clone(memory_format=torch.preserve_format).requires_grad_() for _ in range(2))
    for function, argument in ((ORTModule(call), mine), (call, theirs)):
        output = function(argument)
        output.backward(torch.linspace(0, 1, output.numel(), dtype=dtype).view(output.shape))
        argument.result = output.detach()
    torch.testing.assert_close(mine.result, theirs.result)
    torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize("spatial", [2, 3])
def test_largest_of_equal_windows(spatial):
    call = getattr(F, f"adaptive_max_pool{spatial}d")
    image = leaf(2, 3, *(8, 6, 4)[:spatial]).detach().round().requires_grad_()  # with ties
    beside_eager(lambda x: call(x, (4, 3, 2)[:spatial]), image)
    found = ORTModule(Call(lambda x: call(x, (4, 3, 2)[:spatial], return_indices=True)))(image)
    for one, other in zip(found, call(image, (4, 3, 2)[:spatial], return_indices=True), strict=True):
        assert torch.equal(one, other)
