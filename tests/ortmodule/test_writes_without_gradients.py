"""Parameters that forward writes under torch.no_grad(): readers there have no gradient, readers after it have one."""

import torch
from modules import Of, check, x


def test_what_a_block_under_no_grad_writes_and_reads_has_no_gradient():
    """A momentum encoder that nobody froze got the gradient of its own output."""

    def forward(m, a):
        y = m.l(a)
        with torch.no_grad():
            for online, key in zip(m.l.parameters(), m.k.parameters(), strict=True):
                key.data = key.data * 0.9 + online.data * 0.1
            keys = m.k(a)
        return y * keys

    module = check(Of(forward, k=torch.nn.Linear(4, 4)), x(), steps=3)
    assert module.k.weight.grad is None


def test_what_comes_after_the_block_has_one():
    def forward(m, a):
        with torch.no_grad():
            m.k.weight.clamp_(-0.3, 0.3)
            keys = m.k(a)
        return m.l(a) * keys + m.k(a)

    check(Of(forward, k=torch.nn.Linear(4, 4)), x(), steps=3)


def test_a_parameter_that_a_write_returns_keeps_its_gradient_and_a_view_of_it_has_none():
    def forward(m, a):
        with torch.no_grad():
            weight = m.k.weight.mul_(0.9).clamp_(-0.3, 0.3)
            rows = m.k.weight[:2]
        return m.l(a) @ weight + (a @ rows.t()).sum() * m.k.weight.sum()

    check(Of(forward, k=torch.nn.Linear(4, 4)), x(), steps=3)
