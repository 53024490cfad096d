"""torch.library.custom_op in a module: a node of the engine, with and without a registered gradient."""

import torch
from modules import Of
from training_steps import fresh_inputs, same_training


@torch.library.custom_op("lowtide_tests::gate", mutates_args=())
def gate(a: torch.Tensor, factor: float, bias: torch.Tensor | None = None) -> torch.Tensor:
    return a * factor + (0 if bias is None else bias)


@gate.register_fake
def _(a, factor, bias=None):
    return torch.empty_like(a)


def _gate_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], output)
    ctx.factor, ctx.has_bias = inputs[1], inputs[2] is not None


def _gate_backward(ctx, gradient):
    a, output = ctx.saved_tensors
    return gradient * ctx.factor * 3 + a + output, None, gradient.sum(0) if ctx.has_bias else None


gate.register_autograd(_gate_backward, setup_context=_gate_setup)


@torch.library.custom_op("lowtide_tests::split", mutates_args=())
def split(a: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
    return [piece.clone() for piece in a.split(sizes, 1)]


@split.register_fake
def _(a, sizes):
    return [a.new_empty(a.shape[0], size) for size in sizes]


split.register_autograd(
    lambda ctx, gradients: (torch.cat(gradients, 1) * 2, None), setup_context=lambda ctx, inputs, output: None
)


@torch.library.custom_op("lowtide_tests::ranks", mutates_args=())
def ranks(a: torch.Tensor) -> torch.Tensor:
    return a.argsort(1).to(a.dtype)


@ranks.register_fake
def _(a):
    return torch.empty_like(a)


@torch.library.custom_op("lowtide_tests::count", mutates_args=("counter",))
def count(a: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
    counter += 1
    return a.sum(1) * counter


@count.register_fake
def _(a, counter):
    return a.new_empty(a.shape[0])


@torch.library.custom_op("lowtide_tests::scale_", mutates_args=("a",))
def scale_(a: torch.Tensor, factor: float) -> None:
    a *= factor


def test_with_a_registered_gradient():
    def forward(m, a):
        y = gate(m.l(a), 2.0)
        for _ in range(2):
            y = torch.tanh(m.l(y))
        return gate(y, 0.5, m.l.bias)

    wrapped = same_training(Of(forward), tolerance={"rtol": 1e-3, "atol": 1e-4})
    assert "lowtide_tests::gate" in wrapped.explain()


def test_lists_of_tensors():
    def forward(m, a):
        left, right = split(m.l(a), [1, 3])
        return left * right

    same_training(Of(forward))


def test_without_a_gradient():
    wrapped = same_training(Of(lambda m, a: m.l(ranks(a))), fresh_inputs((3, 4), grad=False))
    assert "lowtide_tests::ranks" in wrapped.explain()
    same_training(Of(lambda m, a: m.l(a) * ranks(m.l(a).detach())))


def test_ops_that_write_into_a_buffer():
    def forward(m, a):
        y = count(a.detach(), m.counter)
        return m.l(a) * y[:, None] + m.counter

    module = Of(forward)
    module.register_buffer("counter", torch.zeros(()))
    wrapped = same_training(module, steps=4)
    assert wrapped.counter.item() == 4


def test_ops_that_write_into_a_value():
    def forward(m, a):
        y = a.detach() * 2
        view = y[1:]
        scale_(view, 3.0)
        return m.l(a) * y + view.sum()

    same_training(Of(forward))


def test_under_autocast():
    def forward(m, a):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return gate(m.l(a), 2.0).float()

    same_training(Of(forward), tolerance={"rtol": 3e-2, "atol": 3e-2})
