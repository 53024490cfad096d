"""Operators inside of modules whose gradients ORTModule had tests for and tests/ops has no samples of; and models
that mix them."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from modules import Of, check

from lowtide.ortmodule import ORTModule


def numbers_of(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def all_transposes(rank):
    """Each permutation of the dims before and behind a product, all in one graph."""

    def forward(m, a):
        y = m.l(a)
        found = []
        for order in itertools.permutations(range(rank)):
            z = y.permute(order)
            found.append(torch.tanh(z) @ torch.tanh(z).transpose(-1, -2) + z.sum(-1, keepdim=True))
        return found

    return forward


def scatter_nd(m, a):
    y = m.l(a).clone()
    rows, columns = torch.tensor([0, 2, 1]), torch.tensor([3, 0, 0])
    y[rows, columns] = a[rows, 0] * 5
    y[1] = y[0] * 2
    y[:, 2:] += 1
    return y.index_put((rows, columns), a[rows, 1], accumulate=True)


def cast_chain(m, a):
    y = m.l(a).half().float().double().float().bfloat16().float()
    return y.to(torch.float64) * 2, y.int().float() + y.long().bool().float(), (y > 0).int()


def extremes(m, a):
    y = m.l(a)
    values, index = y.max(1)
    smallest, at = y.min(0, keepdim=True)
    return y.max(), y.min(), values, index, smallest, at, torch.max(y, a), torch.min(y, a), y.amax((0, 1))


def pools(m, a):
    y = m.c(a)
    averages = F.avg_pool2d(y, 3, 2, 1), F.adaptive_avg_pool2d(y, (1, 1)), F.adaptive_avg_pool2d(y, (4, 2))
    return F.max_pool2d(y, 2), F.max_pool2d(y, 3, 2, 1), F.max_pool2d(y, 3, 1, 1, 2), *averages


def bce_with_logits(m, a):
    y, target = m.l(a), torch.sigmoid(a)
    weight = torch.arange(1.0, 5.0)
    losses = [F.binary_cross_entropy_with_logits(y, target, reduction=name) for name in ("mean", "sum", "none")]
    return *losses, F.binary_cross_entropy_with_logits(y, target, weight, pos_weight=weight)


def chunks_and_splits(m, a):
    y = m.l(a)
    first, second = y.chunk(2, 0)
    return first * 2, second[:1], *y.chunk(3, -1), *torch.split(y, [1, 3], 1)


def einsums(m, a):
    y = m.l(a)
    return (
        torch.einsum("ij,kj->ik", y, a),
        torch.einsum("ij,ij->i", y, a),
        torch.einsum("i...,j...->ij...", y, a),
        torch.einsum("bij,bjk->bik", y.view(1, 3, 4), a.view(1, 3, 4).transpose(1, 2)),
        torch.einsum("ij->ji", y),
    )


def resizes(m, a):
    y = m.c(a)
    line, volume = y.flatten(2), y.unsqueeze(2)
    return (
        F.interpolate(line, scale_factor=2, mode="nearest"),
        F.interpolate(y, size=(9, 5), mode="nearest"),
        F.interpolate(volume, scale_factor=(1, 2, 2), mode="nearest"),
        F.interpolate(y, size=(9, 5), mode="bilinear", align_corners=False),
        F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=True),
        F.interpolate(y, size=(9, 5), mode="bicubic", align_corners=False),
    )


def diagonals(m, a):
    y = m.l(a)
    return y.diagonal() * 2, y.argmax(1).view(1, 3) | 4, torch.diagonal(y, 1), torch.diag_embed(y), y.argmax()


def triangles(m, a):
    y = m.l(a)
    return torch.triu(y), torch.tril(y, -1), torch.triu(y, diagonal=1).sum(), y.unfold(1, 2, 1), y.T.contiguous()


def numbers(m, a):
    y = m.l(a)
    return torch.sigmoid(y), torch.tanh(y), F.softmax(y, 0), 1 / (y.abs() + 1), F.leaky_relu(y, 0.2), y.sum(1).relu()


def squeezes(m, a):
    y = m.l(a).unsqueeze(1).unsqueeze(0)
    return y.squeeze(), y.squeeze(0), y.squeeze(1), y.squeeze((0, 2)), y.squeeze(-1)


IMAGE = (2, 3, 8, 6)
torch.manual_seed(0)  # the modules of CASES are the same in each run
CASES = {
    "transpose3d": (all_transposes(3), {}, (2, 3, 4)),
    "transpose4d": (all_transposes(4), {}, (2, 3, 2, 4)),
    "scatternd": (scatter_nd, {}, (3, 4)),
    "cast_chain": (cast_chain, {}, (3, 4)),
    "minmax": (extremes, {}, (3, 4)),
    "pool2d": (pools, {"c": torch.nn.Conv2d(3, 2, 1)}, IMAGE),
    "bce_with_logits": (bce_with_logits, {}, (3, 4)),
    "chunk": (chunks_and_splits, {}, (4, 4)),
    "einsum": (einsums, {}, (3, 4)),
    "upsample": (resizes, {"c": torch.nn.Conv2d(3, 2, 1)}, IMAGE),
    "diagonal": (diagonals, {}, (3, 4)),
    "triangles": (triangles, {}, (3, 4)),
    "numbers": (numbers, {}, (3, 4)),
    "squeeze": (squeezes, {}, (3, 4)),
    "conv1d": (lambda m, a: m.c(F.pad(a, (1, 1))), {"c": torch.nn.Conv1d(3, 4, 3, 2, groups=1)}, (2, 3, 9)),
    "conv_transpose": (
        lambda m, a: [c(a) for c in (m.a, m.b, m.c)],
        {
            "a": torch.nn.ConvTranspose2d(4, 2, 3),
            "b": torch.nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False),
            "c": torch.nn.ConvTranspose2d(4, 2, (2, 3), (2, 1), (1, 0), (1, 0), dilation=(2, 1)),
        },
        (2, 4, 5, 6),
    ),
    "conv_transpose1d": (lambda m, a: m.c(a), {"c": torch.nn.ConvTranspose1d(4, 2, 3, 2)}, (2, 4, 5)),
    "group_norm": (lambda m, a: m.g(m.h(a)), {"g": torch.nn.GroupNorm(3, 6), "h": torch.nn.Conv2d(3, 6, 1)}, IMAGE),
}


# tests/ops has these operators one by one.
LONG = {"transpose3d", "transpose4d", "minmax", "pool2d", "bce_with_logits", "chunk", "einsum", "numbers", "squeeze"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) if n in LONG else n for n in CASES])
def test_operators_inside_of_modules(name):
    function, children, shape = CASES[name]
    torch.manual_seed(0)
    check(Of(function, **children), numbers_of(*shape).requires_grad_(), tolerance={"rtol": 1e-4, "atol": 2e-4})


def test_embeddings_with_padding_and_repeated_indices():
    module = Of(lambda m, i: m.e(i) * m.e(i).tanh(), e=torch.nn.Embedding(6, 4, padding_idx=2))
    wrapped = check(module, torch.tensor([[0, 2, 5], [5, 5, 1]]))
    assert wrapped.e.weight.grad[2].abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_cross_entropy_of_large_logits(dtype):
    """In half precision a sum of exponentials overflows unless the maximum is subtracted first."""
    target = torch.tensor([0, 3, -100, 1])

    def forward(m, a):
        return F.cross_entropy(a * m.scale, target), F.cross_entropy(m.scale * a, target, reduction="none")

    module = Of(forward)
    module.scale = torch.nn.Parameter(torch.ones(4, dtype=dtype))
    logits = torch.tensor([[3e4, -3e4, 0, 1], [0, 0, 0, 0], [1, 2, 3, 4], [-1e4, 1e4, 9e3, 0]], dtype=dtype)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype is torch.float32 else {"rtol": 1e-2, "atol": 1e-2}
    check(module, logits.requires_grad_(), tolerance=tolerance)


def test_values_whose_size_is_free_where_the_indices_have_a_constant_one():
    # It was called a bug of ours, and PyTorch ran the model.
    rows, columns = torch.tensor([0, 2, 1]), torch.tensor([3, 0, 0])
    wrapped = check(Of(lambda m, a: m.l(a).index_put((rows, columns), a[:, 1])), numbers_of(3, 4).requires_grad_())
    with pytest.raises((RuntimeError, IndexError), match="shape"):
        wrapped(numbers_of(5, 4))


DRAWS_WITHOUT_A_GENERATOR = {
    "randn_like": (lambda a: torch.randn_like(a, generator=None), 0),
    "rand_like": (lambda a: torch.rand_like(a, generator=None), 0.5),
    "randn": (lambda a: torch.randn(a.shape, generator=None), 0),
    "rand": (lambda a: torch.rand(a.shape, generator=None), 0.5),
    "randint": (lambda a: torch.randint(9, a.shape, generator=None).float(), 4),
    "randint.low": (lambda a: torch.randint(5, 14, a.shape, generator=None).float(), 9),
}


@pytest.mark.parametrize("name", DRAWS_WITHOUT_A_GENERATOR)
def test_no_generator_is_pytorchs(name):
    """diffusers passes generator=None, which is an overload of its own; the call had no generator at all."""
    draw, mean = DRAWS_WITHOUT_A_GENERATOR[name]
    wrapped = ORTModule(Of(lambda m, a: m.l(a) * 0 + draw(a) + torch.randperm(4, generator=None)))
    found, other = wrapped(numbers_of(99, 4)), wrapped(numbers_of(99, 4))
    assert wrapped.fallback_reason is None
    deviation = draw(numbers_of(999, 4)).std().item()
    assert found.mean().item() == pytest.approx(1.5 + mean, abs=deviation * 0.3) and not torch.equal(found, other)


def test_draws_from_a_distribution_repeat_under_a_seed():
    wrapped = ORTModule(Of(lambda m, a: torch.multinomial(torch.softmax(m.l(a), 1), 20, replacement=True)))
    drawn = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        drawn.append(wrapped(numbers_of(5, 4)))
    assert drawn[0].shape == (5, 20) and drawn[0].max() < 4
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert wrapped.fallback_reason is None
