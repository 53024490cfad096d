"""Habits of training scripts through both doors, ORTModule and torch.compile: eager's numbers, and in the engine what
it can run."""

import copy

import pytest
import torch
from doors import DOORS, compare, through
from modules import Of, assert_same_state, x
from torch.utils.checkpoint import checkpoint

from lowtide.ortmodule import ORTModule

pytestmark = [
    pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning"),
    pytest.mark.usefixtures("with_pieces"),
]


@pytest.fixture
def reasons(pieces):
    """Gives why PyTorch ran a last call: of the wrapper, or of the pieces that Dynamo made."""

    def of(wrapped):
        if isinstance(wrapped, ORTModule):
            return wrapped.fallback_reason
        assert pieces
        return "; ".join(piece.fallback_reason for piece in pieces if piece.fallback_reason) or None

    return of


def same_batch(index):
    return [x()]


# ---- sizes


def test_squeeze_removes_a_batch_of_one_only():
    wrapped = ORTModule(Of(lambda m, a: (m.l(a).squeeze(), m.l(a).squeeze(0))))
    for rows in (3, 1, 2, 1):
        assert [list(out.shape) for out in wrapped(x(rows, 4))] == ([[4], [4]] if rows == 1 else [[rows, 4]] * 2)
    assert wrapped.transition_counts()["in training mode"]["sizes"] == 1


@pytest.mark.parametrize("length", [3, 4])
def test_slices_of_one_are_squeezed(length):
    """As scores of tags: no graph had a size that its own guard allowed."""

    def forward(m, a, labels):
        scores = m.l(a)
        return sum(scores[:, t].gather(1, labels[:, t : t + 1]).squeeze(1) for t in range(a.shape[1]))

    module = Of(forward)
    wrapped = ORTModule(module)
    for rows in (3, 5, 1):
        a, labels = x(rows, length, 4), torch.arange(rows * length).view(rows, length) % 4
        expected = module.l(a).gather(2, labels[..., None]).sum((1, 2))
        torch.testing.assert_close(wrapped(a, labels), expected)
    assert wrapped.fallback_reason is None


# ---- writes that autograd does not see


def clips_data(m, a):
    m.l.weight.data.clamp_(-0.3, 0.3)
    return m.l(a)


def clips_without_gradients(m, a):
    with torch.no_grad():
        m.l.weight.mul_(0.9).clamp_(-0.3, 0.3)
    return m.l(a)


def copies(m, a):
    weight = m.l.weight.data
    m.l.weight.data.copy_(weight / weight.norm())
    return m.l(a).tanh()


def sets_data(m, a):
    m.l.weight.data = m.l.weight.data.clamp(-0.3, 0.3)
    m.l.bias.data = m.l.bias.data * 0.9 + m.l.weight.data.mean(1) * 0.1
    return m.l(a)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("forward", [clips_data, clips_without_gradients, copies, sets_data])
def test_trained_weights_are_changed_before_they_are_read(door, forward, reasons):
    wrapped = compare(door, Of(forward), same_batch)
    assert reasons(wrapped) is None


def test_a_changed_weight_has_the_gradient_of_what_it_became():
    module = Of(clips_data)
    ours = ORTModule(copy.deepcopy(module))
    loss = ours(x()).sum()
    again = ours(x()).sum()  # another forward changes it again, to what it is
    (loss + again).backward(retain_graph=True)
    twice = ours.l.weight.grad.clone()
    (loss + again).backward()
    module.zero_grad()
    (module(x()).sum() * 2).backward()
    torch.testing.assert_close(twice, module.l.weight.grad)
    torch.testing.assert_close(ours.l.weight.grad, 2 * twice)


def changes_an_activation(m, a):
    y = m.l(a)
    y.data.clamp_(-0.5, 0.5)
    return y.sin()


def changes_what_it_has_read(m, a):
    y = m.l(a)
    m.l.weight.data.mul_(0.9)
    return y + m.l(y)


def swaps_data(m, a):
    """Binary weights: the old ones come back."""
    weight = m.l.weight.data
    m.l.weight.data = weight.sign()
    y = m.l(a)
    m.l.weight.data = weight
    return y


@pytest.mark.parametrize("door", DOORS)
def test_data_that_others_read_too_is_pytorchs(door, reasons):
    wrapped = compare(door, Of(swaps_data), same_batch)
    assert reasons(wrapped) is not None


def decays_after_it_is_read(m, a):
    y = m.l(m.l(a))
    m.l.weight.data.mul_(0.9)
    m.l.bias.data = m.l.bias.data * 0.9
    return y


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("forward", [changes_what_it_has_read, decays_after_it_is_read])
def test_other_changes_through_data_are_pytorchs(door, forward, reasons):
    """PyTorch's backward found the decayed weight changed in place."""
    wrapped = compare(door, Of(forward), same_batch)
    assert "forward writes under torch.no_grad() or through .data into" in reasons(wrapped)


@pytest.mark.parametrize("door", DOORS)
def test_an_activation_that_is_changed_keeps_its_gradient(door, reasons):
    wrapped = compare(door, Of(changes_an_activation), same_batch)
    assert reasons(wrapped) is None


def test_teacher_of_moving_averages():
    def forward(m, a):
        with torch.no_grad():
            for mean, parameter in zip(m.teacher.parameters(), m.l.parameters(), strict=True):
                mean.mul_(0.9).add_(parameter, alpha=0.1)
        return (m.l(a) - m.teacher(a)).square()

    module = Of(forward, teacher=torch.nn.Linear(4, 4).requires_grad_(False))
    assert compare("ORTModule", module, same_batch).fallback_reason is None


@pytest.mark.parametrize("door", DOORS)
def test_two_forwards_of_spectral_norm_before_one_backward(door, reasons):
    """As a discriminator has: what the second one writes into was an output of the first piece."""
    norm = torch.nn.utils.parametrizations.spectral_norm
    eager = Of(lambda m, a: m.s(m.l(a)).relu(), s=norm(torch.nn.Linear(4, 4))).double()
    inner = copy.deepcopy(eager)
    wrapped = through(door, inner)
    for _ in range(2):
        for each in (eager, wrapped):
            each.zero_grad()
            (each(x().double()) * each(x(5, 4).double()[:3])).sum().backward()
        assert_same_state(inner, eager)
    assert reasons(wrapped) is None


# ---- copies


@pytest.mark.parametrize("door", DOORS)
def test_a_clone_of_a_buffer_is_what_it_was(door, reasons):
    """A queue of keys, as of MoCo: backward found it changed."""
    module = Of(lambda m, a: m.l(a) @ m.queue.clone().detach().t())
    module.register_buffer("queue", x(6, 4))
    eager, wrapped = copy.deepcopy(module), through(door, module)
    for each, owner in ((eager, eager), (wrapped, module)):
        out = each(x())
        owner.queue[0] = 7
        out.sum().backward()
    torch.testing.assert_close(module.l.weight.grad, eager.l.weight.grad)
    assert reasons(wrapped) is None


@pytest.mark.parametrize("door", DOORS)
def test_a_clone_of_a_weight_is_what_it_was(door, reasons):
    """The first forward's gradients were those of the second one's weights."""
    module = Of(lambda m, a: (a * m.scale) @ m.l.weight.clone(), scale=torch.nn.Parameter(torch.ones(4)))
    eager, wrapped = copy.deepcopy(module), through(door, module)
    for each, owner in ((eager, eager), (wrapped, module)):
        first = each(x())
        owner.l.weight.data.mul_(3)
        (first * each(x())).sum().backward()
    for ours, theirs in zip(module.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert reasons(wrapped) is None


# ---- autocast, checkpoints, hooks, transforms


@pytest.mark.parametrize("door", DOORS)
def test_autocast_inside_of_forward_gives_its_dtype(door):
    def forward(m, a):
        with torch.autocast("cpu", torch.bfloat16):
            return m.l(a)

    module = Of(forward)
    wrapped = through(door, module)
    assert wrapped(x()).dtype == module(x()).dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("door", DOORS)
def test_a_reentrant_checkpoint_of_what_takes_no_gradient_gives_none(door, reasons):
    module = Of(lambda m, a: m.last(checkpoint(m.l, a, use_reentrant=True)), last=torch.nn.Linear(4, 4))
    wrapped = compare(door, module, same_batch)
    assert module.l.weight.grad is None and module.last.weight.grad is not None
    given = [x().requires_grad_()]
    wrapped(given[0].double()).sum().backward()
    assert module.l.weight.grad is not None and reasons(wrapped) is None


def doubles_a_gradient(m, a):
    y = m.l(a)
    y.register_hook(lambda gradient: gradient * 2)
    return y.sin() + y


def keeps_a_gradient(m, a):
    m.y = m.l(a)
    m.y.retain_grad()
    return m.last(m.y.sin())


@pytest.mark.parametrize("door", DOORS)
def test_hooks_on_activations(door, reasons):
    wrapped = compare(door, Of(doubles_a_gradient), same_batch)
    assert "in PyTorch" not in (reasons(wrapped) or "")


@pytest.mark.parametrize("door", DOORS)
def test_gradients_of_activations_are_kept(door):
    module = Of(keeps_a_gradient, last=torch.nn.Linear(4, 4))
    wrapped = through(door, module)
    for _ in range(3):
        module.zero_grad()
        wrapped(x()).sum().backward()
        torch.testing.assert_close(module.y.grad, module.last.weight.sum(0) * module.y.cos())
    if door == "ORTModule":
        assert "pieces in the engine" in wrapped.fallback_reason


def per_sample_gradients(m, a):
    return torch.func.vmap(torch.func.grad(lambda row: m.l(row).sin().sum()))(m.l(a))


def jacobians(m, a):
    return torch.func.vmap(torch.func.jacrev(lambda row: m.l(row).sin()))(a)


def tangents(m, a):
    return sum(torch.func.jvp(lambda row: m.l(row).sin(), (a,), (torch.ones_like(a),)))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "forward",
    [per_sample_gradients, *(pytest.param(forward, marks=pytest.mark.long) for forward in (jacobians, tangents))],
)
def test_transforms_of_functions(door, forward):
    """They raised, and left PyTorch's transforms active."""
    compare(door, Of(forward), lambda index: [x(3 + index, 4)])
    assert torch._C._functorch.peek_interpreter_stack() is None


@pytest.mark.parametrize("door", DOORS)
def test_backward_inside_of_forward(door):
    def forward(m, a):
        loss = m.l(a).square().mean()
        loss.backward()
        return loss.detach()

    module = Of(forward)
    eager = copy.deepcopy(module)
    wrapped = through(door, module)
    for each in (eager, wrapped):
        each(x())
    torch.testing.assert_close(module.l.weight.grad, eager.l.weight.grad)


# ---- what is no submodule, what is detached, what is written as a complex number


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("forward", [lambda m, a: m.l(a) + m.others[0](a), lambda m, a: m.l(a) * m.others[1]])
def test_parameters_in_a_plain_list_have_gradients(door, forward, reasons):
    """They had none, in silence."""
    module = Of(forward)
    module.others = [torch.nn.Linear(4, 4), torch.nn.Parameter(torch.ones(4))]
    eager = copy.deepcopy(module)
    wrapped = through(door, module)
    for _ in range(2):
        for each, call in ((eager, eager), (module, wrapped)):
            call(x()).square().sum().backward()
            each.found = [each.others[0].weight.grad, each.others[1].grad, each.l.weight.grad]
        for ours, theirs in zip(module.found, eager.found, strict=True):
            assert (ours is None) == (theirs is None)
            assert ours is None or torch.allclose(ours, theirs)
        with torch.no_grad():
            for each in (eager, module):
                each.others[0].weight -= 0.1
                each.others[1].mul_(0.5)
    assert reasons(wrapped) is None


@pytest.mark.parametrize("door", DOORS)
def test_a_detached_view_of_a_weight_needs_no_gradient(door):
    wrapped = through(door, Of(lambda m, a: (m.l(a), m.l.weight.detach(), m.l.weight.t(), a.detach())))
    found = wrapped(x(grad=True))
    assert [output.requires_grad for output in found] == [True, False, True, False]


@pytest.mark.parametrize("door", DOORS)
def test_writes_of_complex_numbers_into_slices(door, reasons):
    """As Fourier neural operators have them: PyTorch's slice_scatter has no gradient."""

    def forward(m, a):
        spectrum = torch.fft.rfft(m.l(a))
        kept = torch.zeros_like(spectrum)
        kept[..., :2] = torch.einsum("bi,io->bo", spectrum[..., :2], m.w)
        kept[:, 2] = spectrum[:, 1]
        return torch.fft.irfft(kept, n=4)

    module = Of(forward, w=torch.nn.Parameter(torch.complex(x(2, 2), x(2, 2) + 1)))
    eager, wrapped = copy.deepcopy(module), through(door, module)
    for each in (eager, wrapped):
        each(x()).square().sum().backward()
    for ours, theirs in zip(module.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert reasons(wrapped) is None


@pytest.mark.parametrize("door", DOORS)
def test_writes_of_real_numbers_into_complex_ones(door, reasons):
    """A padded spectrum. It raised: PyTorch's own copy has no gradient in a graph."""

    def forward(m, a):
        padded = torch.zeros(a.shape[0], 6, dtype=torch.complex64)
        padded[..., :4] = m.l(a)
        padded[:, 5].copy_(a[:, 0] / 0)
        turned = torch.complex(a, m.l(a)).clone()
        turned.copy_(m.l(a).double())
        return (padded[..., :5] * (1 + 2j)).imag + padded[:, 5:].imag, torch.fft.ifft(turned).abs()

    module = Of(forward)
    eager, wrapped = copy.deepcopy(module), through(door, module)
    for each in (eager, wrapped):
        outputs = each(x())
        sum(output.square().sum() for output in outputs).backward()
        each.found = [output.detach() for output in outputs]
    torch.testing.assert_close(wrapped.found, eager.found)
    for ours, theirs in zip(module.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert reasons(wrapped) is None


# ---- a teacher


@torch.inference_mode()
def taught(m, a):
    return m.teacher(a) * 2


def between(m, a):
    with torch.inference_mode():
        target = m.teacher(a)
        with torch.inference_mode(False):
            learnt = m.l(a.detach())
    return learnt - target.clone()


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("forward", [lambda m, a: m.l(a.detach()) - taught(m, a).clone(), between])
def test_what_a_teacher_computes_in_inference_mode_has_no_gradient(door, forward, reasons):
    """It had one, in silence."""
    wrapped = compare(door, Of(forward, teacher=torch.nn.Linear(4, 4)), same_batch)
    assert wrapped.teacher.weight.grad is None and wrapped.l.weight.grad is not None
    assert reasons(wrapped) is None
