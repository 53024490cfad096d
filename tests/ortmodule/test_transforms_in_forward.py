"""torch.func's transforms inside of forward: Dynamo's graph of them is one in the engine. PyTorch ran such modules."""

import pytest
import torch
from doors import DOORS, compare
from modules import Of
from torch import func

pytestmark = [
    pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning"),
    pytest.mark.usefixtures("with_pieces"),
]


def slopes(m, a):
    return m.l(a).sum() + func.grad(lambda b: m.l(b).sin().sum())(a).square().sum()


def laplacians(m, a):
    def total(b):
        return m.l(b).sin().square().sum()

    seconds = [func.grad(lambda b, i=i: func.grad(total)(b)[:, i].sum())(a)[:, i] for i in range(4)]
    return sum(seconds).square().sum()


def jacobians(m, a):
    return func.vmap(func.jacrev(lambda row: m.l(row).sin()))(m.l(a)).square().sum()


def forward_jacobians(m, a):
    return func.vmap(func.jacfwd(lambda row: m.l(row).sin()))(m.l(a)).square().sum()


def jacobian_of_a_batch(m, a):
    return func.jacrev(lambda b: m.l(b).sin().sum(0))(m.l(a)).square().sum()


def pullback(m, a):
    """Called behind the transform's end, twice."""
    found, back = func.vjp(lambda b: m.l(b).sin(), a)
    (first,) = back(found.cos())
    (second,) = back(first.sin())
    return found.sum() + second.square().sum()


def hessians(m, a):
    return func.vmap(func.hessian(lambda row: m.l(row).tanh()[0]))(a).square().sum()


def normed(m, a):
    def total(b):
        return torch.nn.functional.layer_norm(m.l(b), (4,), m.l.bias).sin().sum()

    return func.grad(total)(a).square().sum()


def gradients_of_samples(m, a):
    state = dict(m.l.named_parameters())

    def loss(state, row):
        return func.functional_call(m.l, state, (row,)).square().sum()

    found = func.vmap(func.grad(loss), (None, 0))(state, a)
    return sum(each.square().sum() for each in found.values())


CASES = [
    slopes,
    laplacians,
    jacobians,
    forward_jacobians,
    jacobian_of_a_batch,
    pullback,
    hessians,
    normed,
    gradients_of_samples,
]

IN_CI = ("slopes", "jacobians", "pullback")  # the others with ./dev test --all


@pytest.mark.parametrize(
    "forward", [case if case.__name__ in IN_CI else pytest.param(case, marks=pytest.mark.long) for case in CASES]
)
def test_one_piece_with_eagers_losses_and_gradients(forward):
    wrapped = compare("ORTModule", Of(forward), lambda index: [torch.randn(3 + index, 4, dtype=torch.float64)])
    assert wrapped.fallback_reason.startswith("1 of 1 pieces in the engine")


@pytest.mark.parametrize("door", DOORS)
def test_a_transform_in_which_gradients_end(door):
    def forward(m, a):
        return func.grad(lambda b: (m.l(b).sin() * m.l(b).detach()).sum())(a).square().sum()

    compare(door, Of(forward), lambda index: [torch.randn(3, 4, dtype=torch.float64)])


@pytest.mark.parametrize("door", DOORS)
def test_without_gradients(door):
    def forward(m, a):
        with torch.no_grad():
            scale = func.grad(lambda b: m.l(b).sin().sum())(a)
        return m.l(a * scale).sum()

    compare(door, Of(forward), lambda index: [torch.randn(3, 4, dtype=torch.float64)])
