"""`with torch.no_grad(): weight.to(dtype)` is the weight itself where it has that dtype, and takes its gradient.
(SwitchTransformers' router calls `self.classifier.to(dtype)` in forward: its weight trained without one.)"""

import copy

import pytest
import torch
from modules import of, x

from lowtide.compile_backend import lowtide
from lowtide.errors import FallbackWarning
from lowtide.ortmodule import ORTModule


def unused(m, a):
    with torch.no_grad():
        m.l.weight.to(a.dtype)
    return m.l(a)


def of_a_parameter(m, a):
    with torch.no_grad():
        weight = m.l.weight.to(a.dtype)
    return torch.nn.functional.linear(a, weight)


def twice(m, a):
    b = m.l(a)
    with torch.no_grad():
        c = b.double().type_as(a).cpu()
    return c * 2 + b


def others(m, a):
    b = m.l(a)
    with torch.no_grad():
        c = torch.atleast_2d(torch.real(+b)).resolve_conj()
    return c * 2 + b


def of_the_module(m, a):
    m.l = m.l.to(a.dtype)
    return m.l(a)


def a_copy(m, a):
    b = m.l(a)
    with torch.no_grad():
        c = b.to(a.dtype, copy=True)
    return c * b


def there_and_back(m, a):
    b = m.l(a)
    with torch.no_grad():
        c = b.float().double()
    return c * b


@pytest.mark.parametrize("wrap", [ORTModule, lambda module: torch.compile(module, backend=lowtide)])
@pytest.mark.parametrize("function", [unused, of_a_parameter, twice, others, of_the_module, a_copy, there_and_back])
def test_gradients(function, wrap):
    module = of(function).double()
    same, given, found = copy.deepcopy(module), x(3, 4).double(), []
    for each, parameters in ((module, module.parameters()), (wrap(same), same.parameters())):
        loss = each(given).square().sum()
        loss.backward()
        found.append([loss.detach(), [parameter.grad for parameter in parameters]])
    torch.testing.assert_close(*found)


def test_a_module_that_has_run_before(recwarn):
    """Its parameters are set to themselves: nothing that is read before is written."""

    def function(m, a):
        b = m.l(a)
        m.l = m.l.to(a.dtype)
        return m.l(a) * b

    module = of(function)
    same, given = copy.deepcopy(module), x(3, 4).double()
    losses = [each(given).square().sum() for each in (module, torch.compile(same, backend=lowtide))]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*([parameter.grad for parameter in each.parameters()] for each in (module, same)))
    assert not [warning for warning in recwarn if issubclass(warning.category, FallbackWarning)]
