"""Functions of PyTorch's that ask for data inside: to raise, to warn, for a count."""

import copy

import pytest
import torch
import torch.nn.functional as F

from lowtide.ortmodule import ORTModule


class Of(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 3).double(), torch.nn.Linear(4, 3).double()
        self.function = function

    def forward(self, x):
        return self.function(self.first(x), self.second(x))


def nll(a, b):
    return F.gaussian_nll_loss(a, b.detach(), F.softplus(b), full=True)


def nll_below_its_bound(a, b):
    return torch.nn.GaussianNLLLoss(reduction="none")(a, b.detach(), F.softplus(b) * 1e-6).pow(2).sum()


def nll_of_one_for_each_row(a, b):
    return F.gaussian_nll_loss(a, torch.zeros_like(a), F.softplus(b).mean(1), reduction="sum", eps=0.1)


def nll_of_one_column(a, b):
    return F.gaussian_nll_loss(a, torch.zeros_like(a), F.softplus(b[:, :1]))


def covariance(a, b):
    return torch.cov(torch.cat((a, b), 1).T).pow(2).sum()


def covariance_of_one_row(a, b):
    return a[:, 0].cov(correction=0) * b.sum()


def correlation(a, b):
    return torch.corrcoef(torch.cat((a, b), 1).T).pow(3).sum()


def correlation_of_one_row(a, b):
    return torch.corrcoef(a[:, 0]) * b.sum()


def assertion(a, b):
    torch._assert((a < 100).all(), "too large")
    return (a * b).sum()


def places(a, b):
    return a[torch.argwhere(b[:, 0] > b[:, 1]).squeeze(1)].sum() + b.sum()


FUNCTIONS = (
    nll,
    nll_below_its_bound,
    nll_of_one_for_each_row,
    nll_of_one_column,
    covariance,
    covariance_of_one_row,
    correlation,
    correlation_of_one_row,
    assertion,
    places,
)


def gradients(module, x):
    module.zero_grad()
    loss = module(x)
    loss.backward()
    return loss, [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_they_are_of_one_graph(function, exports):
    torch.manual_seed(0)
    module = Of(function)
    wrapped = ORTModule(copy.deepcopy(module))
    for rows in (5, 8, 6):
        x = torch.randn(rows, 4, dtype=torch.float64)
        torch.testing.assert_close(gradients(wrapped, x), gradients(module, x), rtol=1e-9, atol=1e-10)
    assert wrapped.fallback_reason is None and len(exports) == 1


def test_they_raise_what_they_raise():
    of_variances = ORTModule(Of(lambda a, b: F.gaussian_nll_loss(a, torch.zeros_like(a), a * a * torch.sign(b + 90))))
    of_limits = ORTModule(Of(assertion))
    for wrapped, kind, text in (
        (of_variances, ValueError, "var has negative entry"),
        (of_limits, AssertionError, "too large"),
    ):
        gradients(wrapped, torch.ones(5, 4).double())
        assert wrapped.fallback_reason is None
        with pytest.raises(kind, match=text), torch.no_grad():
            for parameter in wrapped.parameters():
                parameter.add_(1000.0 if kind is AssertionError else -1000.0)
            wrapped.train()(torch.ones(5, 4).double())


def test_what_pytorch_refuses_or_warns_of_is_left_to_it():
    wrapped = ORTModule(Of(lambda a, b: F.gaussian_nll_loss(a, torch.zeros_like(a), b[:2].abs())))
    with pytest.raises(ValueError, match="var is of incorrect size"):
        wrapped(torch.ones(5, 4).double())
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert ORTModule(Of(covariance))(torch.ones(1, 4).double()).isnan()
