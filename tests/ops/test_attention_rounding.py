"""Attention on large scores in float32: as near to float64 as PyTorch's own flash kernel.

Scores near 100 have roundings of 1e-5, and so have the probabilities that backward makes of them and of their
log-sum-exp. PyTorch's unfused formulas keep the softmax itself and are nearer.
"""

import pytest
import torch
from sample_graph import Invocation, SampleGraph
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from lowtide import _lowtide


@pytest.fixture(scope="module", autouse=True)
def torch_installed():
    _lowtide.install_torch(torch.get_num_threads())


def _with_gradients(tensors, mask, gradient):
    tensors = [tensor.detach().to(gradient.dtype).requires_grad_() for tensor in tensors]
    y = scaled_dot_product_attention(*tensors, attn_mask=mask.to(gradient.dtype))
    y.backward(gradient)
    return [y.detach(), *(tensor.grad for tensor in tensors)]


def test_large_scores_with_a_mask():
    torch.manual_seed(0)
    tensors = [torch.empty(4, 4, size, 8).uniform_(-9, 9).requires_grad_() for size in (3, 6, 6)]
    mask, gradient = torch.empty(3, 6).uniform_(-9, 9), torch.randn(4, 4, 3, 8)
    exact = _with_gradients(tensors, mask, gradient.double())
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        theirs = _with_gradients(tensors, mask, gradient)
    graph = SampleGraph([Invocation(scaled_dot_product_attention, tensors, {"attn_mask": mask})])
    assert not graph.fallbacks
    ours = graph.results([gradient])
    for expected, flash, found in zip(exact, theirs, ours, strict=True):
        assert (found - expected).abs().max() <= 3 * (flash - expected).abs().max()
