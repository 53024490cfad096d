"""Random numbers from where forward says: eager's, and the generator is left as eager leaves it."""

import copy

import pytest
import torch
from modules import Of, x

from lowtide import compile_backend
from lowtide.ortmodule import ORTModule

pytestmark = [
    pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning"),
    pytest.mark.usefixtures("with_pieces"),
]


def seeded_aside(m, a):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        noise = torch.randn(3, 4)
    return m.l(a) * noise


DRAWS = {
    "rand": lambda m, a: m.l(a) * torch.rand(3, 4, generator=m.generator),
    "randperm": lambda m, a: m.l(a)[torch.randperm(3, generator=m.generator)],
    "bernoulli": lambda m, a: m.l(a) * torch.bernoulli(torch.full((3, 4), 0.5), generator=m.generator),
    "normal_": lambda m, a: m.l(a) + torch.empty(3, 4).normal_(generator=m.generator),
    "made by forward": lambda m, a: m.l(a) * torch.rand(3, 4, generator=torch.Generator().manual_seed(5)),
    "fork_rng": seeded_aside,
}


@pytest.mark.parametrize("door", ("ORTModule", "torch.compile"))
@pytest.mark.parametrize("name", DRAWS)
def test_draws_from_a_generator_are_eagers(name, door):
    eager = Of(DRAWS[name])
    module = copy.deepcopy(eager)
    wrapped = ORTModule(module) if door == "ORTModule" else torch.compile(module, backend=compile_backend.lowtide)
    for each in (eager, module):
        each.generator = torch.Generator().manual_seed(1)
    before = torch.get_rng_state()
    for _ in range(3):
        outputs = [each(x()) for each in (wrapped, eager)]
        torch.testing.assert_close(*outputs)
        for output in outputs:
            output.sum().backward()
        torch.testing.assert_close(module.l.weight.grad, eager.l.weight.grad)
        assert torch.equal(module.generator.get_state(), eager.generator.get_state())
        assert torch.equal(torch.get_rng_state(), before)


def test_a_seed_set_in_forward_repeats_its_numbers():
    def forward(m, a):
        torch.manual_seed(3)
        return m.l(a) * torch.rand(3, 4)

    wrapped = ORTModule(Of(forward))
    wrapped(x())
    outputs = [wrapped(x()) for _ in range(3)]
    torch.testing.assert_close(outputs[1:], outputs[:-1])
