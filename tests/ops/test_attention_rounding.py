"""Attention on large scores in float32: as near to float64 as the roundings of its formulas allow.

Scores near 100 have roundings of 1e-5, and so have the probabilities that backward makes of them and of their
log-sum-exp, in PyTorch's flash kernel as in ours. PyTorch's unfused formulas keep the softmax itself and are nearer.
"""

import math

import pytest
import torch
from rounding import RandomRounding
from sample_graph import Invocation, SampleGraph
from torch.nn.functional import scaled_dot_product_attention

from lowtide import _lowtide


@pytest.fixture(scope="module", autouse=True)
def torch_installed():
    _lowtide.install_torch(torch.get_num_threads())


def _with_gradients(query, key, value, mask, gradient):
    """Attention and its gradients, backward by the log-sum-exp."""
    scale = 1 / math.sqrt(query.shape[-1])
    scores = scale * (query @ key.mT) + mask
    log_sum_exp = scores.logsumexp(-1, keepdim=True)
    y = (scores - log_sum_exp).exp() @ value
    p = (scores - log_sum_exp).exp()
    gradient_of_scores = p * (gradient @ value.mT - (gradient * y).sum(-1, keepdim=True))
    return y, scale * gradient_of_scores @ key, scale * gradient_of_scores.mT @ query, p.mT @ gradient


def test_large_scores_with_a_mask():
    torch.manual_seed(0)
    tensors = [torch.empty(4, 4, size, 8).uniform_(-9, 9).requires_grad_() for size in (3, 6, 6)]
    mask, gradient = torch.empty(3, 6).uniform_(-9, 9), torch.randn(4, 4, 3, 8)
    in_fp64 = [tensor.detach().double() for tensor in (*tensors, mask, gradient)]
    exact = _with_gradients(*in_fp64)
    with RandomRounding(torch.float32, seed=0):
        rounded = _with_gradients(*in_fp64)
    graph = SampleGraph([Invocation(scaled_dot_product_attention, tensors, {"attn_mask": mask})])
    assert not graph.fallbacks
    ours = graph.results([gradient])
    for expected, other, found in zip(exact, rounded, ours, strict=True):
        limit = (other - expected).abs().max()
        assert (found - expected).abs().max() <= limit < 1e-4 * expected.abs().max()
