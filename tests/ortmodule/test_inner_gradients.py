"""torch.autograd.grad inside of forward: residuals of differential equations, forces, penalties of gradients, steps
within a step. They ran in pieces, the larger of them in PyTorch."""

import pytest
import torch
from doors import DOORS, compare, through
from modules import Of, assert_same_state, pair
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")


class Residual(nn.Module):
    """Of Burgers' equation: first and second derivatives."""

    def __init__(self, act=nn.Tanh):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), act(), nn.Linear(8, 8), act(), nn.Linear(8, 1))
        self.nu = nn.Parameter(torch.tensor(0.1))

    def forward(self, x, t):
        x, t = x.clone().requires_grad_(), t.clone().requires_grad_()
        u = self.net(torch.cat([x, t], 1))
        u_t, u_x = torch.autograd.grad(u, (t, x), torch.ones_like(u), create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
        return (u_t + u * u_x - self.nu * u_xx).square().mean() + u.square().mean()

    @staticmethod
    def inputs(rows):
        return torch.randn(rows, 1, dtype=torch.float64), torch.randn(rows, 1, dtype=torch.float64)


class Smooth(Residual):
    def __init__(self):
        super().__init__(nn.SiLU)


class Forces(nn.Module):
    """Norms keep statistics, whose gradients PyTorch's own backward knows and nobody else."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 1))

    def forward(self, places):
        places = places.detach().requires_grad_()
        distances = (places[:, None] - places).square().sum(2) + 1
        energy = (self.net(places).sum(1) / distances.sqrt().sum(1)).sum()
        (slope,) = torch.autograd.grad(energy, places, create_graph=self.training, retain_graph=True)
        return energy + slope.square().mean()

    @staticmethod
    def inputs(rows):
        return (torch.randn(rows, 3, dtype=torch.float64),)


class Penalty(nn.Module):
    """Of the gradient of what a discriminator says."""

    def __init__(self, norm=nn.Identity):
        super().__init__()
        body = [nn.Conv2d(2, 4, 4, 2, 1), norm(), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(4, 4, 3, 1, 1)]
        self.says = nn.Sequential(*body, nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 1))

    def forward(self, real):
        real = real.detach().requires_grad_()
        says = self.says(real)
        (slope,) = torch.autograd.grad(says.sum(), real, create_graph=True)
        return nn.functional.softplus(-says).mean() + slope.pow(2).sum((1, 2, 3)).mean()

    @staticmethod
    def inputs(rows):
        return (torch.randn(rows, 2, 8, 8, dtype=torch.float64),)


class OfBatches(Penalty):
    def __init__(self):
        super().__init__(lambda: nn.BatchNorm2d(4))


class OfGroups(Penalty):
    def __init__(self):
        super().__init__(lambda: nn.GroupNorm(2, 4))


class OfSamples(Penalty):
    def __init__(self):
        super().__init__(lambda: nn.InstanceNorm2d(4, affine=True))


class InnerStep(nn.Module):
    """Of model-agnostic meta-learning."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x, y):
        parameters = dict(self.net.named_parameters())
        loss = (self.net(x) - y).square().mean()
        slopes = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
        moved = {name: p - 0.1 * slope for (name, p), slope in zip(parameters.items(), slopes, strict=True)}
        return (torch.func.functional_call(self.net, moved, (x + 1,)) - y).square().mean()

    @staticmethod
    def inputs(rows):
        return torch.randn(rows, 2, dtype=torch.float64), torch.randn(rows, 1, dtype=torch.float64)


class Adversary(InnerStep):
    """A gradient without one of its own, and an argument that nothing depends on."""

    def forward(self, x, y):
        x, other = x.clone().requires_grad_(), y.clone().requires_grad_()
        loss = (self.net(x) - y).square().mean()
        slope, none = torch.autograd.grad(loss, (x, other), retain_graph=True, allow_unused=True)
        assert none is None
        return loss + (self.net(x + 0.1 * slope) - y).square().mean()


class HandedOn(Forces):
    """Calls that return their argument itself, which the exporter took for their result: other paths were lost."""

    def forward(self, places):
        places = places.detach().requires_grad_()
        moved = self.net[0](places)[:, :3]
        loss = nn.functional.mse_loss(moved, places) + (places.contiguous() * moved).to(moved.dtype).sum()
        (slope,) = torch.autograd.grad(loss, places, create_graph=True)
        return loss + slope.sin().sum() + self.net(places).sum()


class Sigmoids(Forces):
    """What it keeps for its backward has no gradient in PyTorch."""

    def forward(self, places):
        places = places.detach().requires_grad_()
        (slope,) = torch.autograd.grad(nn.functional.logsigmoid(self.net[0](places)).sum(), places, create_graph=True)
        return slope.square().sum() + self.net(places).sum()


class Parts(Forces):
    """Results that are lists, and zeros of sizes that autograd makes."""

    def forward(self, places):
        places = places.detach().requires_grad_()
        first, second, third = self.net[0](places).sin().split([3, 3, 2], 1)
        energy = sum(row.sum() for row in (first * second).unbind(1)) + third[:, 0].chunk(1)[0].square().sum()
        (slope,) = torch.autograd.grad(energy, places, create_graph=True)
        return slope.square().sum() + self.net(places).sum()


CASES = [
    Residual,
    Smooth,
    Forces,
    Penalty,
    OfBatches,
    OfGroups,
    OfSamples,
    InnerStep,
    Adversary,
    HandedOn,
    Sigmoids,
    Parts,
]


@pytest.mark.parametrize("cls", CASES)
def test_one_graph_with_eagers_losses_and_gradients(cls):
    ours, theirs = pair(cls)
    for rows in (3, 3, 5):
        inputs = cls.inputs(rows)
        losses = [module(*inputs) for module in (ours, theirs)]
        torch.testing.assert_close(*losses, rtol=1e-12, atol=1e-12)
        for loss in losses:
            loss.backward()
        assert ours.fallback_reason is None
    assert_same_state(ours, theirs)


@pytest.mark.parametrize("door", DOORS)
def test_a_gradient_cannot_pass_what_is_detached(door):
    def forward(m, a):
        a = a.clone().requires_grad_()
        h = m.l(a).sin()
        with torch.no_grad():
            scale = h.exp()
        (slope,) = torch.autograd.grad((h * h.detach() * scale).sum(), a, create_graph=True)
        return slope.square().sum()

    compare(door, Of(forward).double(), lambda index: [torch.randn(3 + index, 4, dtype=torch.float64)])


@pytest.mark.parametrize("door", DOORS)
def test_random_numbers_are_drawn_once(door):
    """y is linear in a, so that it is a times its slope, where both have dropped the same."""

    def forward(m, a):
        a = (a + torch.rand_like(a)).requires_grad_()
        y = nn.functional.dropout(a * 2, 0.4)
        (slope,) = torch.autograd.grad(y.sum(), a, create_graph=True)
        return m.l(y - a * slope), slope

    module = Of(forward).double()
    ours = through(door, module)
    for _ in range(3):
        out, slope = ours(torch.randn(16, 4, dtype=torch.float64))
        out.sum().backward()
        torch.testing.assert_close(out, module.l.bias.expand(16, 4))
        assert slope.eq(0).any() and slope.ne(0).any()
    assert door != "ORTModule" or ours.fallback_reason is None


def test_what_is_changed_in_place_is_left_to_pytorch():
    def forward(m, a):
        a = a.clone().requires_grad_()
        h = m.l(a).sin()
        y = h * 1
        y[:, 0] = h[:, 1].exp()
        (slope,) = torch.autograd.grad(y.square().sum(), a, create_graph=True)
        return slope.square().sum()

    compare("ORTModule", Of(forward).double(), lambda index: [torch.randn(3, 4, dtype=torch.float64)])


def test_a_mistake_is_pytorchs_own():
    def forward(m, a):
        return torch.autograd.grad(m.l(a).sum(), a.clone().requires_grad_(), create_graph=True)[0]

    ours, _ = pair(lambda: Of(forward))
    with pytest.raises(RuntimeError, match="appears to not have been used"):
        ours(torch.randn(3, 4, dtype=torch.float64))
