"""In-place operations and writes into buffers, inputs and views, as PyTorch does them."""

import pytest
import torch
from modules import Of, check, x

from lowtide.ortmodule import ORTModule


def test_batch_norm_writes_its_statistics():
    module = Of(lambda m, a: m.n(m.l(a)), n=torch.nn.BatchNorm1d(4))
    # The bias before a batch norm has a true gradient of zero.
    wrapped = check(module, x(6, 4), tolerance={"rtol": 1e-4, "atol": 1e-4})
    assert int(wrapped.n.num_batches_tracked) == 2
    before = wrapped.n.running_mean._version
    wrapped(x(6, 4))
    assert wrapped.n.running_mean._version == before  # autograd counts none of these writes, as in eager
    wrapped.eval()
    statistics = wrapped.n.running_mean.clone()
    wrapped(x(6, 4))
    assert torch.equal(wrapped.n.running_mean, statistics)


def test_buffers_changed_in_place_and_by_assignment():
    def forward(m, a):
        m.count += 1
        m.mean = m.mean * 0.5 + a.mean(0).detach()
        return m.l(a) * m.count + m.mean

    module = Of(forward)
    module.register_buffer("count", torch.zeros(()))
    module.register_buffer("mean", torch.zeros(4))
    check(module, x(), steps=3)


def test_mutated_inputs_are_written():
    def forward(m, a):
        a.add_(1)
        return m.l(a)

    module = Of(forward)
    ours, theirs = x(), x()
    wrapped = ORTModule(module)
    torch.testing.assert_close(wrapped(ours), module(theirs))
    torch.testing.assert_close(ours, theirs)


CASTS = {
    "to a dtype": lambda a: a.to(torch.float64),
    "to that of another": lambda a: a.to(torch.ones(1, dtype=torch.float64)),
    "to a device and a dtype": lambda a: a.to("cpu", torch.float64),
    "a copy": lambda a: a.to(torch.float32, copy=True),
    "there and back": lambda a: a.to(torch.float64).to(torch.float32),
}


@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("grad", [False, True])
def test_what_an_argument_was_cast_to_has_memory_of_its_own(cast, grad):
    def forward(m, a):
        found = CASTS[cast](a)
        found *= 3
        found[0] = 1
        return m.l(found.float()) + m.l(a), found

    check(Of(forward), x(grad=grad))


def test_writes_into_buffers_under_no_grad_carry_no_gradient():
    def forward(m, a):
        y = m.l(a)
        with torch.no_grad():
            m.b[0] = y.mean(0)
            m.c.mul_(0.5).add_(y.mean(0))
        return y * m.b.sum(0) + m.c

    module = Of(forward)
    module.register_buffer("b", torch.ones(2, 4))
    module.register_buffer("c", torch.ones(4))
    check(module, x(grad=True))


def test_writes_under_no_grad_leave_the_gradient_as_it_was():
    def forward(m, a):
        y = m.l(a)
        with torch.no_grad():
            y.mul_(3)
        return y

    check(Of(forward), x())


def test_in_place_operations_and_writes_through_views():
    def forward(m, a):
        y = m.l(a) * 1
        y[:, 0] = 0
        y[1:].mul_(2)
        z = torch.zeros(y.shape[0], 4)
        z.add_(y)
        z.t()[1].copy_(y[:, 2] * 3)
        return z

    check(Of(forward), x(grad=True))


def test_writes_into_an_argument_with_a_gradient_are_pytorchs():
    def forward(m, a):
        a.mul_(3)
        return m.l(a)

    module = Of(forward)
    leaf = x(grad=True)
    with pytest.warns(UserWarning, match="in-place operation|takes a gradient"):
        ORTModule(module)(leaf * 1).sum().backward()
    torch.testing.assert_close(leaf.grad, 3 * module.l.weight.sum(0).expand(3, 4))
