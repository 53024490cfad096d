"""Functions that run a module again in their backward and differentiate by the parameters that they were given, as
adjoints of differential equations, invertible layers and checkpoints do. They were given views, of which nothing
depends: such parameters had no gradient, without a word."""

import pytest
import torch
from doors import DOORS, compare, through
from modules import Of
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")


class Again(torch.autograd.Function):
    """As torchdiffeq's adjoint: parameters are saved, and need not be used."""

    @staticmethod
    def forward(ctx, run, x, *parameters):
        ctx.run = run
        ctx.save_for_backward(x, *parameters)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx, gradient):
        x, *parameters = ctx.saved_tensors
        wanted = [parameter for parameter in parameters if parameter.requires_grad]
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            first, *found = torch.autograd.grad(ctx.run(x), (x, *wanted), gradient, allow_unused=True)
        found = iter(found)
        return None, first, *(next(found) if parameter.requires_grad else None for parameter in parameters)


class Kept(Again):
    """As torch_geometric's InvertibleFunction: they are attributes of ctx."""

    @staticmethod
    def forward(ctx, run, x, *parameters):
        ctx.run, ctx.given = run, (x, *parameters)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx, gradient):
        x, *parameters = ctx.given
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return None, *torch.autograd.grad(ctx.run(x), (x, *parameters), gradient)


def _through(function, net=None):
    net = net or nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    return Of(lambda m, x: function.apply(m.net, m.l(x), *m.net.parameters()).sin(), net=net).double()


def _inputs(index):
    return [torch.randn(3 + index // 2, 4, dtype=torch.float64)]


@pytest.mark.parametrize("function", [Again, Kept])
@pytest.mark.parametrize("door", DOORS)
def test_parameters_that_a_function_was_given_have_gradients(door, function):
    ours = compare(door, _through(function), _inputs)
    assert door != "ORTModule" or ours.fallback_reason is None


def test_a_frozen_parameter_stays_frozen():
    module = _through(Again)
    module.net[0].weight.requires_grad_(False)
    ours = compare("ORTModule", module, _inputs)
    assert ours.fallback_reason is None
    assert not ours.net[0].weight.requires_grad and ours.net[0].weight.grad is None


@pytest.mark.parametrize("function", [Again, Kept])
def test_hooks_of_parameters_run_as_in_pytorch(function):
    found = []
    for wrap in (lambda module: module, lambda module: through("ORTModule", module)):
        torch.manual_seed(0)
        module, calls = _through(function), []
        module.net[0].weight.register_hook(lambda gradient, calls=calls: calls.append(gradient) or 2 * gradient)
        wrapped = wrap(module)
        for _ in range(2):
            wrapped(torch.ones(3, 4, dtype=torch.float64)).sum().backward()
        found.append((module.net[0].weight.grad, *calls))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0)


def test_a_hook_runs_once_where_the_function_takes_tensors_alone():
    calls = []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return Scaled.apply(x, self.weight).sum()

    ours = through("ORTModule", Net())
    ours.weight.register_hook(lambda gradient: calls.append(gradient))
    for _ in range(2):
        ours(torch.ones(3, 4)).backward()
    assert ours.fallback_reason is None and len(calls) == 2
    torch.testing.assert_close(ours.weight.grad, torch.full((4,), 6.0))


class Inverted(Again):
    """It frees its input, as invertible layers do."""

    @staticmethod
    def forward(ctx, run, x, *parameters):
        ctx.run, ctx.given = run, (x, *parameters)
        with torch.no_grad():
            result = run(x)
        ctx.bytes_of_x, ctx.again = x.untyped_storage().nbytes(), x.detach().clone()
        x.untyped_storage().resize_(0)
        return result

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.given[0]
        x.untyped_storage().resize_(ctx.bytes_of_x)
        x.set_(ctx.again)
        return Kept.backward(ctx, gradient)


def test_an_input_that_a_function_frees_is_its_own():
    ours = compare("ORTModule", _through(Inverted), _inputs, steps=4)
    assert ours.fallback_reason is None
