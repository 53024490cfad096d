"""Several backwards through one call (retain_graph=True): each gives the bits that it gives alone."""

import copy
import gc
import weakref

import pytest
import torch
from modules import Of, x

from lowtide import compile_backend
from lowtide.errors import EngineError
from lowtide.ortmodule import ORTModule


class Net(torch.nn.Module):
    """Two losses that share a trunk with dropout and batch norm."""

    def __init__(self):
        super().__init__()
        self.trunk = torch.nn.Sequential(
            torch.nn.Linear(16, 32),
            torch.nn.BatchNorm1d(32),
            torch.nn.GELU(),
            torch.nn.Dropout(0.3),
            torch.nn.Linear(32, 32),
            torch.nn.Tanh(),
        )
        self.a, self.b = torch.nn.Linear(32, 4), torch.nn.Linear(32, 1)

    def forward(self, inputs, labels):
        hidden = self.trunk(inputs)
        return torch.nn.functional.cross_entropy(self.a(hidden), labels), self.b(hidden).pow(2).mean()


class Layers(torch.nn.Module):
    """Layers alike, for recompute."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True) for _ in range(3)
        )

    def forward(self, inputs, labels):
        for layer in self.layers:
            inputs = layer(inputs)
        return inputs.pow(2).mean(), (inputs * labels).sum()


def batch(rows=8, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 16, generator=generator), torch.randint(4, (rows,), generator=generator)


def rows_of_layers():
    return x(16, 32, 16), x(16, 32, 16) + 1


def gradients_of(loss, module, **kwargs):
    return torch.autograd.grad(loss, list(module.parameters()), allow_unused=True, **kwargs)


def assert_same_bits(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.equal(ours, theirs)


def alone(wrapped, arguments, which, seed=5):
    """Gradients of one loss, in a step that has that backward alone."""
    torch.manual_seed(seed)
    losses = wrapped(*arguments)
    assert wrapped.fallback_reason is None
    return gradients_of(losses[which] if which is not None else losses[0] + losses[1], wrapped)


def check_bits(module, arguments, **options):
    """A backward of each loss and of both through one call, twice, against steps with one backward."""
    wrapped = ORTModule(module, **options)
    expected = {which: alone(wrapped, arguments, which) for which in (0, 1, None)}
    torch.manual_seed(5)
    first, second = wrapped(*arguments)
    state = torch.get_rng_state()
    for _ in range(2):
        assert_same_bits(gradients_of(first, wrapped, retain_graph=True), expected[0])
        assert_same_bits(gradients_of(second, wrapped, retain_graph=True), expected[1])
        assert_same_bits(gradients_of(first + second, wrapped, retain_graph=True), expected[None])
    assert torch.equal(state, torch.get_rng_state())
    assert wrapped.fallback_reason is None
    return wrapped


def test_dropout_and_batch_norm():
    wrapped = check_bits(Net(), batch())
    assert wrapped.module.trunk[1].num_batches_tracked == 4  # one a forward


def test_a_memory_budget():
    check_bits(Layers(), rows_of_layers(), memory_budget="70%")


@pytest.mark.parametrize("level", ["1", "2"])
def test_recompute(monkeypatch, level):
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
    check_bits(Layers(), rows_of_layers())


def test_as_eager():
    module = Net()
    module.trunk[3] = torch.nn.Identity()
    eager, wrapped = copy.deepcopy(module).double(), ORTModule(module.double())
    inputs, labels = batch()
    for target in (eager, wrapped):
        first, second = target(inputs.double(), labels)
        first.backward(retain_graph=True)
        second.backward()
    for ours, theirs in zip(wrapped.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    for ours, theirs in zip(wrapped.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_several_pending_forwards_of_other_sizes():
    wrapped = ORTModule(Net())
    batches = [batch(rows, rows) for rows in (8, 5, 3)]
    expected = [[alone(wrapped, each, which, seed) for which in (0, 1)] for seed, each in enumerate(batches)]
    pending = []
    for seed, each in enumerate(batches):
        torch.manual_seed(seed)
        pending.append(wrapped(*each))
    for which in (0, 1, 0):
        for index in (1, 2, 0):
            assert_same_bits(gradients_of(pending[index][which], wrapped, retain_graph=True), expected[index][which])


def test_gradients_of_inputs_and_accumulation():
    wrapped = ORTModule(Of(lambda m, a: torch.tanh(m.l(a))))
    leaf = x(grad=True)
    output = wrapped(leaf * 1)
    output.sum().backward(retain_graph=True)
    once = leaf.grad.clone()
    output.sum().backward(retain_graph=True)
    output.sum().backward()
    torch.testing.assert_close(leaf.grad, 3 * once)


def test_a_jacobian_row_by_row():
    wrapped = ORTModule(Of(lambda m, a: torch.sigmoid(m.l(a))))
    leaf = x(4, grad=True)
    output = wrapped(leaf)
    rows = [torch.autograd.grad(output[place], leaf, retain_graph=True)[0] for place in range(4)]
    expected = torch.autograd.functional.jacobian(wrapped.module, x(4))
    torch.testing.assert_close(torch.stack(rows), expected)


def test_a_graph_that_is_not_kept_is_pytorchs_error():
    wrapped = ORTModule(Of(lambda m, a: (m.l(a) ** 2).sum()))
    loss = wrapped(x())
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time .*retain_graph=True"):
        loss.backward()
    loss = wrapped(x())
    loss.backward()
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        loss.backward()


def test_what_changed_in_place_is_an_error():
    wrapped = ORTModule(Of(lambda m, a, b: torch.tanh(m.l(a) + b) * m.l(a)))
    cases = [
        (lambda a, b: wrapped.l.weight, "modified by an inplace operation"),
        (lambda a, b: a, "modified by an inplace operation"),
        (lambda a, b: wrapped.l.bias, r"parameter 'l.bias'.* modified by an inplace operation"),
        (lambda a, b: b, r"argument 'args_1'.* modified by an inplace operation"),
    ]
    for pick, message in cases:
        a, b = x(), x() + 1
        loss = wrapped(a, b).sum()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        with torch.no_grad():
            pick(a, b).add_(1)
        with pytest.raises(RuntimeError, match=message):
            loss.backward()


def test_what_no_gradient_depends_on_may_change_or_go():
    wrapped = ORTModule(Of(lambda m, a, b: torch.tanh(m.l(a)) + b))
    a, b = x(grad=True), x()
    loss = wrapped(a, b).sum()
    kept = wrapped(a, b * 1).sum()
    expected = torch.autograd.grad(loss, a, retain_graph=True)
    assert_same_bits(torch.autograd.grad(kept, a, retain_graph=True), expected)
    b.add_(1)
    assert_same_bits(torch.autograd.grad(loss, a), expected)
    assert_same_bits(torch.autograd.grad(kept, a), expected)


def test_a_step_holds_no_activation_that_autograd_does_not():
    wrapped = ORTModule(Of(lambda m, a, b: torch.tanh(m.l(a) + b)))
    wrapped(x(), x(grad=True) + 1).sum().backward()  # a step with one backward
    b = x(grad=True) + 1
    loss = wrapped(x(), b).sum()
    seen = weakref.ref(b)
    del b
    gc.collect()
    assert seen() is None
    loss.backward(retain_graph=True)
    with pytest.raises(EngineError, match="argument 'args_1', which is gone: hold it until the last backward"):
        loss.backward()
    once = wrapped.l.weight.grad.clone()
    loss = wrapped(x(), x(grad=True) + 1).sum()  # now a step is known to have two
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close(wrapped.l.weight.grad, once * 2)


@pytest.mark.parametrize("door", ["wrapper", "compile"])
def test_arguments_that_nobody_else_holds(door):
    """A mask and a bias, and what another module made: they were gone at the second backward."""

    def attends(m, a, mask, bias):
        return (m.l(a.relu() + 1) + bias).masked_fill(mask == 0, -1e4).softmax(-1)

    torch.compiler.reset()
    below, above = torch.nn.Linear(4, 4).double(), Of(attends).double()
    compiled = ORTModule(above) if door == "wrapper" else torch.compile(above, backend=compile_backend.lowtide)
    for target in (above, compiled, above, compiled):
        out = target(below(x().double()), torch.tensor([0, 1, 1, 1]), x().double())
        out[0].square().sum().backward(retain_graph=True)
        out[1].square().sum().backward()
        if target is above:
            expected = [below.weight.grad.clone(), above.l.weight.grad.clone()]
        else:
            torch.testing.assert_close([below.weight.grad, above.l.weight.grad], expected)
        below.zero_grad()
        above.zero_grad()
    assert door == "compile" or compiled.fallback_reason is None


def test_a_batch_is_held_no_longer_than_what_autograd_saves():
    wrapped = ORTModule(Of(lambda m, a, b: torch.tanh(m.l(a) + b)))
    b = x() + 1
    loss = wrapped(x(), b).sum()
    seen = weakref.ref(b)
    del b
    gc.collect()
    assert seen() is not None
    loss.backward()
    gc.collect()
    assert seen() is None


def test_numbers_among_the_arguments():
    wrapped = ORTModule(Of(lambda m, a, scale: torch.tanh(m.l(a) * scale)))
    a = x()
    for scale in (0.5, 0.25, 0.75):
        loss = wrapped(a, scale).sum()
        first = gradients_of(loss, wrapped, retain_graph=True)
        wrapped(a, 3.0)
        assert_same_bits(gradients_of(loss, wrapped), first)
    assert wrapped.fallback_reason is None


def clips(m, a):
    with torch.no_grad():
        m.l.weight.clamp_(-0.2, 0.2)
    return torch.tanh(m.l(a)).sum()


def decays(m, a):
    m.l.weight.data.mul_(0.9)
    return torch.tanh(m.l(a)).sum()


def normalises(m, a):
    with torch.no_grad():
        length = m.l.weight.norm()
        m.l.weight.div_(length)
    return (torch.tanh(m.l(a)) * length).sum()


def moves_an_average(m, a):
    y = torch.tanh(m.l(a) * m.scale.clone())
    m.scale.mul_(0.5)
    return y.sum()


@pytest.mark.filterwarnings("ignore:create_graph=True")
@pytest.mark.parametrize("function", [clips, decays, normalises, moves_an_average])
@pytest.mark.parametrize("door", ["wrapper", "compile"])
def test_what_forward_writes_is_as_it_was(function, door):
    torch.compiler.reset()
    eager = Of(function).double()
    eager.register_buffer("scale", torch.ones(4, dtype=torch.float64))
    target, found = copy.deepcopy(eager), []
    compiled = ORTModule(target) if door == "wrapper" else torch.compile(target, backend=compile_backend.lowtide)
    for module, call in ((eager, eager), (target, compiled)):
        found.append([])
        for _ in range(2):
            leaf = x().double().requires_grad_()
            targets = [leaf, *module.parameters()]
            first = torch.autograd.grad(call(leaf), targets, create_graph=True)
            found[-1] += [*first, *torch.autograd.grad(sum(each.pow(2).sum() for each in first), targets)]
            loss = call(leaf)
            found[-1] += torch.autograd.grad(loss, targets, retain_graph=True)
            found[-1] += torch.autograd.grad(loss, targets)
        found[-1] += [*module.parameters(), module.scale]
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert door == "compile" or compiled.fallback_reason is None


def test_what_forward_wrote_is_held_until_backward():
    wrapped = ORTModule(Of(decays))
    loss = wrapped(x())
    (kept,) = (saved for saved in loss.grad_fn.saved_tensors if saved.shape == (4, 4) and saved is not wrapped.l.weight)
    torch.testing.assert_close(kept * 0.9, wrapped.l.weight.detach())
    assert wrapped.memory_report()["held_bytes"] == kept.untyped_storage().nbytes()
    seen = weakref.ref(kept.untyped_storage())
    del kept
    loss.backward()
    gc.collect()
    assert seen() is None


class Noisy(torch.autograd.Function):
    """Draws from PyTorch's generator."""

    @staticmethod
    def forward(ctx, a):
        mask = (torch.rand_like(a) > 0.5).to(a.dtype)
        ctx.save_for_backward(mask)
        return a * mask

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


def test_a_custom_function_draws_the_same_numbers_again():
    wrapped = ORTModule(Of(lambda m, a: torch.tanh(Noisy.apply(m.l(a)))))
    for _ in range(2):
        loss = wrapped(x(6, 4)).sum()
        assert wrapped.fallback_reason is None
        first = gradients_of(loss, wrapped, retain_graph=True)
        state = torch.get_rng_state()
        assert_same_bits(gradients_of(loss, wrapped), first)
        assert torch.equal(state, torch.get_rng_state())


def test_saved_tensors_on_the_cpu_serve_again():
    wrapped = ORTModule(Of(lambda m, a: torch.tanh(m.l(a))))
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor), pytest.warns(UserWarning):
        loss = wrapped(x()).sum()
    first = gradients_of(loss, wrapped, retain_graph=True)
    assert_same_bits(gradients_of(loss, wrapped), first)


def with_a_break(m, a):
    hidden = torch.tanh(m.l(a))
    if hidden.sum() > 100:  # no graph knows
        hidden = hidden * 2
    return torch.sigmoid(m.l(hidden))


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
@pytest.mark.parametrize("door", ["pieces", "compile"])
def test_graphs_of_dynamo(door, monkeypatch):
    monkeypatch.setenv("LOWTIDE_PIECES", "1")
    torch.compiler.reset()
    module = Of(with_a_break)
    target = ORTModule(module) if door == "pieces" else torch.compile(module, backend=compile_backend.lowtide)
    for rows in (3, 5):
        output = target(x(rows, 4))
        first = gradients_of(output[0, 0], module, retain_graph=True)
        assert_same_bits(gradients_of(output[0, 0], module, retain_graph=True), first)
        expected = gradients_of(module(x(rows, 4))[0, 0], module)
        torch.testing.assert_close(first, expected)
    if door == "pieces":
        assert "2 of 2 pieces in the engine" in target.fallback_reason
