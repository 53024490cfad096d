"""Ops on operands of two dtypes: refused where PyTorch refuses, else PyTorch's dtype and values."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from sample_graph import Invocation, SampleGraph

from lowtide import _lowtide
from lowtide.errors import GraphError, InternalError

F32, F64, BF16, I64, BOOL = torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool
PAIRS = [(F32, F64), (F64, F32), (F32, I64), (I64, F32), (BF16, F32), (F32, BF16), (I64, I64)]
WITH_BOOL = [(F32, BOOL), (BOOL, F32), (BOOL, I64)]
TOLERANCES = {F64: 1e-10, F32: 1e-5, BF16: 3e-2}


def over(*sizes, bools=False):
    return sizes, PAIRS + WITH_BOOL if bools else PAIRS


IMAGES, POINTS, SEQUENCES = (2, 4, 6, 6), (3, 4), (3, 4, 5)
ACTIVATIONS = """relu relu6 elu selu celu gelu silu mish softplus logsigmoid glu leaky_relu hardtanh hardswish
    hardsigmoid tanh sigmoid log_softmax"""
# name → (function of two tensors, their sizes and pairs of dtypes)
OPS = {
    "linear": (F.linear, over(POINTS, (5, 4))),
    "linear_bias": (lambda x, b: F.linear(x, x.new_ones(4, 4), b), over(POINTS, (4,))),
    "matmul": (torch.matmul, over(POINTS, (4, 5))),
    "mm": (torch.mm, over(POINTS, (4, 5))),
    "mv": (torch.mv, over(POINTS, (4,))),
    "bmm": (torch.bmm, over((2, 3, 4), (2, 4, 5))),
    "addmm": (lambda x, w: torch.addmm(x.new_ones(3, 5), x, w), over(POINTS, (4, 5))),
    "addmm_self": (lambda x, w: torch.addmm(w, x, x.t()), over(POINTS, (3, 3))),
    "outer": (torch.outer, over((3,), (4,))),
    "einsum": (lambda x, w: torch.einsum("ij,jk->ik", x, w), over(POINTS, (4, 5))),
    "conv1d": (F.conv1d, over((2, 4, 6), (5, 4, 3))),
    "conv2d": (F.conv2d, over(IMAGES, (5, 4, 3, 3))),
    "conv2d_same": (lambda x, w: F.conv2d(x, w, padding="same"), over(IMAGES, (5, 4, 3, 3))),
    "attention": (lambda q, k: F.scaled_dot_product_attention(q, k, k), over((1, 2, 3, 4), (1, 2, 3, 4))),
    "layer_norm": (lambda x, w: F.layer_norm(x, (4,), w, w), over(POINTS, (4,))),
    "layer_norm_two": (lambda x, b: F.layer_norm(x, (4,), x.new_ones(4), b), over(POINTS, (4,))),
    "group_norm": (lambda x, w: F.group_norm(x, 2, w, w), over(SEQUENCES, (4,))),
    "batch_norm": (lambda x, w: F.batch_norm(x, None, None, w, w, training=True), over(SEQUENCES, (4,))),
    "batch_norm_eval": (lambda x, w: F.batch_norm(x, w.new_zeros(4), w.new_ones(4), w, w), over(SEQUENCES, (4,))),
    "embedding": (F.embedding, over((3,), (5, 4))),
    "one_hot": (lambda x, w: F.one_hot(x, 5) * w, over((3,), (1,))),
    "prelu": (F.prelu, over(POINTS, (1,))),
    "cross_entropy": (F.cross_entropy, over(POINTS, (3,))),
    "cross_entropy_soft": (F.cross_entropy, over(POINTS, POINTS)),
    "cross_entropy_weight": (lambda x, w: F.cross_entropy(x, torch.arange(3), w), over(POINTS, (4,))),
    "nll_loss": (F.nll_loss, over(POINTS, (3,))),
    "nll_loss_weight": (lambda x, w: F.nll_loss(x, torch.arange(3), w), over(POINTS, (4,))),
    "mse_loss": (F.mse_loss, over(POINTS, POINTS)),
    "l1_loss": (F.l1_loss, over(POINTS, POINTS)),
    "huber_loss": (F.huber_loss, over(POINTS, POINTS)),
    "bce": (lambda x, t: F.binary_cross_entropy(x.clamp(0, 1), t.clamp(0, 1)), over(POINTS, POINTS)),
    "bce_with_logits": (F.binary_cross_entropy_with_logits, over(POINTS, POINTS)),
    "kl_div": (F.kl_div, over(POINTS, POINTS)),
    "multilabel": (F.multilabel_soft_margin_loss, over(POINTS, POINTS, bools=True)),
    "add": (torch.add, over(POINTS, (4,), bools=True)),
    "sub": (torch.sub, over(POINTS, (4,), bools=True)),
    "rsub": (lambda x, w: (1 - x) * w, over(POINTS, (4,), bools=True)),
    "neg": (lambda x, w: -x * w, over(POINTS, (4,), bools=True)),
    "div": (torch.div, over(POINTS, (4,), bools=True)),
    "pow": (torch.pow, over(POINTS, (4,))),
    "maximum": (torch.maximum, over(POINTS, (4,))),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), over(POINTS, POINTS)),
    "clamp": (lambda x, y: torch.clamp(x, min=y), over(POINTS, POINTS)),
    "where": (lambda x, y: torch.where(x > 1, x, y), over(POINTS, POINTS, bools=True)),
    "where_condition": (lambda x, c: torch.where(c, x, x), over(POINTS, POINTS, bools=True)),
    "masked_fill": (lambda x, mask: x.masked_fill(mask, 0), over(POINTS, POINTS, bools=True)),
    "add_": (lambda x, y: x.clone().add_(y), over(POINTS, (4,), bools=True)),
    "cat": (lambda x, y: torch.cat([x, y]), over(POINTS, POINTS, bools=True)),
    "gather": (lambda x, i: x.gather(1, i), over(POINTS, (3, 2), bools=True)),
    "index": (lambda x, i: x[i], over(POINTS, (2,))),
    "index_select": (lambda x, i: x.index_select(0, i), over(POINTS, (2,))),
    "index_add": (lambda x, y: x.index_add(0, torch.arange(2), y), over(POINTS, (2, 4))),
    "index_copy": (lambda x, y: x.index_copy(0, torch.arange(2), y), over(POINTS, (2, 4))),
    "index_put": (lambda x, y: x.index_put((torch.arange(2),), y), over(POINTS, (2, 4))),
    "scatter": (lambda x, y: x.scatter(1, torch.arange(4).expand(3, 4), y), over(POINTS, POINTS)),
    "scatter_add": (lambda x, y: x.scatter_add(1, torch.zeros(3, 4, dtype=I64), y), over(POINTS, POINTS)),
    "softmax": (lambda x, w: F.softmax(x, -1) * w, over(POINTS, (4,))),
    "mean": (lambda x, w: x.mean(0) * w, over(POINTS, (4,))),
    "avg_pool": (lambda x, w: F.avg_pool2d(x, 2) * w, over(IMAGES, (1,))),
    "cumsum": (lambda x, w: x.cumsum(0) * w, over(POINTS, (1,), bools=True)),
    **{name: (lambda x, w, name=name: getattr(F, name)(x) * w, over(POINTS, (1,))) for name in ACTIVATIONS.split()},
}


@pytest.fixture(scope="module", autouse=True)
def torch_installed():
    _lowtide.install_torch(torch.get_num_threads())


def tensor(dtype, sizes):
    values = torch.rand(sizes, generator=torch.Generator().manual_seed(len(sizes))) * 2 + 0.25
    return (values > 1 if dtype is BOOL else values.to(dtype)).requires_grad_(dtype.is_floating_point)


def eager_refuses(call):
    try:
        outputs = call(call.tensors)
        for output in outputs:
            if output.requires_grad:
                output.sum().backward()
    except (RuntimeError, TypeError, IndexError):
        return True
    return False


def wrong(call, pair):
    if eager_refuses(call):
        try:
            SampleGraph([call]).outputs()
        except (InternalError, GraphError, AssertionError) as error:
            return f"PyTorch refuses, and here it looks like a bug: {error}"
        except Exception:
            return ""
        return "PyTorch refuses, and here it runs"
    tolerance = max(TOLERANCES.get(dtype, 0) for dtype in pair) or TOLERANCES[F32]
    return "; ".join(mismatch.text for mismatch in SampleGraph([call]).mismatches(tolerance, tolerance))


@pytest.mark.parametrize("name", OPS)
def test_two_dtypes(name):
    function, (sizes, pairs) = OPS[name]
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for pair in pairs:
            call = Invocation(function, [tensor(dtype, size) for dtype, size in zip(pair, sizes, strict=True)])
            if text := wrong(call, pair):
                found[pair] = text
    assert not found
