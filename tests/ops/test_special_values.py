"""NaN, infinities, zeros and denormals in inputs and in incoming gradients: activations and extremes as PyTorch's.

Where PyTorch's answer depends on the place of an element (the tail of its vector loops goes another way with NaN), ours
is one of its answers.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from sample_graph import Invocation, SampleGraph

from lowtide import _lowtide

INF, NAN = math.inf, math.nan
# sigmoid flushes below 2^-126, that is for x < -88; PyTorch's hardswish overflows above 5e37.
VALUES = (
    NAN,
    INF,
    -INF,
    0.0,
    -0.0,
    1e-40,
    -1e-40,
    1.0,
    -1.0,
    0.5,
    -0.5,
    3.0,
    -3.0,
    6.0,
    20.0,
    80.0,
    -80.0,
    1e37,
    -1e37,
)
INCOMING = (1.5, NAN, INF, -INF, 0.0, -0.0, 1e-40, -2.0)
SIZES = (1, 7, 64, 100)  # vectors' bodies and tails
DTYPES = (torch.float32, torch.float64)

ACTIVATIONS = {
    **{name: getattr(F, name) for name in "relu relu6 hardtanh hardswish hardsigmoid elu selu celu silu mish".split()},
    **{name: getattr(F, name) for name in "leaky_relu softplus logsigmoid softsign hardshrink softshrink".split()},
    **{name: getattr(torch, name) for name in "sigmoid tanh abs exp sqrt reciprocal".split()},
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu_half": lambda x: F.elu(x, 0.5),
    "celu_two": lambda x: F.celu(x, 2.0),
    "leaky_relu_negative": lambda x: F.leaky_relu(x, -0.5),
    "softplus_two": lambda x: F.softplus(x, 2.0, 10.0),
    "threshold": lambda x: F.threshold(x, 0.5, -1.0),
    "prelu": lambda x: F.prelu(x, x.new_full((1,), 0.25)),
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp_min": lambda x: x.clamp(min=0.5),
    "clamp_tensors": lambda x: torch.clamp(x, x.new_zeros(()), x.new_ones(())),
    "maximum": lambda x: torch.maximum(x, x.new_ones(())),
    "minimum": lambda x: torch.minimum(x, x.new_ones(())),
}
# What is rounded in another way: x + 1 where x is near -1, 1 - y² where y is near 1, 1/6 that is a float in PyTorch.
LOOSE = {"gelu": 1e-3, "gelu_tanh": 1e-3, "tanh": 1e-2, "hardsigmoid": 1e-7, "hardswish": 1e-7, "softsign": 1e-4}
# PyTorch's gelu is oneDNN's on some processors, which makes NaN of infinity there; the limit is right anywhere.
LIMITS = {"gelu": {("inf", "y"): INF}}


@pytest.fixture(scope="module", autouse=True)
def torch_installed():
    _lowtide.install_torch(torch.get_num_threads())


def is_near(found, expected, relative):
    if math.isnan(expected) or math.isinf(expected):
        return found == expected or math.isnan(found) and math.isnan(expected)
    return abs(found - expected) <= relative * abs(expected) + 1e-37  # denormals may be flushed


def calls(function, dtype):
    """Calls of all sizes over all pairs, the pairs of each, and the incoming gradients."""
    pairs = [(value, gradient) for value in VALUES for gradient in INCOMING]
    for size in SIZES:
        for first in range(0, len(pairs), size) if size > 1 else range(0, len(pairs), 19):
            chosen = [pairs[(first + place) % len(pairs)] for place in range(size)]
            x, incoming = torch.tensor(chosen, dtype=dtype).unbind(1)
            yield Invocation(function, [x.contiguous().requires_grad_()]), chosen, incoming.contiguous()


@pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "f64"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation(name, dtype):
    invocations, chosen, incoming = zip(*calls(ACTIVATIONS[name], dtype), strict=True)
    results = SampleGraph(invocations).results(list(incoming))
    relative = max(LOOSE.get(name, 0), 1e-5 if dtype is torch.float32 else 1e-9)
    ours, theirs = {}, {}
    for index, call in enumerate(invocations):
        (x,) = call.tensors
        (y,) = call([x])
        (gradient,) = torch.autograd.grad(y, x, incoming[index])
        for found, pair in (((y, gradient), theirs), ((results[index], results[len(invocations) + index]), ours)):
            for (value, dy), *both in zip(chosen[index], *(one.tolist() for one in found), strict=True):
                pair.setdefault((str(value), "y"), set()).add(both[0])
                pair.setdefault((str(value), "gradient of", str(dy)), set()).add(both[1])
    for key, limit in LIMITS.get(name, {}).items():
        theirs[key].add(limit)
    wrong = {
        key: (found, theirs[key])
        for key, values in ours.items()
        for found in values
        if not any(is_near(found, expected, relative) for expected in theirs[key])
    }
    assert not wrong


EXTREMES = {
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin(1),
    "amax_columns": lambda x: x.amax(0),
    "amax_all": lambda x: x.amax(),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "max_index": lambda x: x.max(1)[0],
    "min_index": lambda x: x.min(1)[0],
    "norm": lambda x: x.norm(INF, dim=1),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "f64"])
@pytest.mark.parametrize("name", EXTREMES)
def test_an_extreme(name, dtype):
    invocations, incoming = [], []
    for size in SIZES:
        for special in (0.25, NAN, INF, -INF, 2.0):
            x = torch.tensor([1.0, 2.0, -1.0, 0.5] * 25 * 3, dtype=dtype).view(3, 100)[:, :size].contiguous()
            x[0, 0], x[1, size - 1], x[2, size // 2] = special, special, special
            for gradient in (1.5, NAN, INF) if name != "norm" else (1.5,):
                invocations.append(Invocation(EXTREMES[name], [x.clone().requires_grad_()]))
                incoming.append(torch.full_like(EXTREMES[name](x), gradient))
    results = SampleGraph(invocations).results(incoming)
    for index, call in enumerate(invocations):
        (x,) = call.tensors
        (y,) = call([x])
        torch.testing.assert_close(results[index], y.detach(), equal_nan=True, rtol=0, atol=0)
        (gradient,) = torch.autograd.grad(y, x, incoming[index])
        torch.testing.assert_close(results[len(invocations) + index], gradient, equal_nan=True)


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_kl_div_of_targets_that_are_no_probabilities(reduction):
    x = torch.tensor([0.3, NAN, INF, -INF]).repeat(4).requires_grad_()
    target = torch.tensor([-1.0, 0.0, 0.5, NAN]).repeat_interleave(4)
    graph = SampleGraph([Invocation(lambda x, t: F.kl_div(x, t, reduction=reduction), [x, target])])
    loss = F.kl_div(x, target, reduction=reduction)
    incoming = torch.full_like(loss, 1.5)
    for ours, theirs in zip(graph.results([incoming]), [loss, *torch.autograd.grad(loss, x, incoming)], strict=True):
        torch.testing.assert_close(ours, theirs.detach(), equal_nan=True)
