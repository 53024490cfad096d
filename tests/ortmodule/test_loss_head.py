"""A linear layer and its cross entropy as one op: the same numbers as in steps, and no logits that nobody asked for."""

import copy

import pytest
import torch
from torch.nn import functional

from lowtide.ortmodule import ORTModule

ROWS, WIDTH, CLASSES = 600, 16, 700
LOGITS = 4 * ROWS * CLASSES


class Head(torch.nn.Module):
    """Tied, as in language models; `cut` leaves the last position of each sequence out, as older ones do."""

    def __init__(self, cut=False, bias=True, **options):
        super().__init__()
        self.table = torch.nn.Embedding(CLASSES, WIDTH)
        self.fc = torch.nn.Linear(WIDTH, WIDTH)
        self.bias = torch.nn.Parameter(torch.randn(CLASSES)) if bias else None
        self.cut, self.options = cut, options

    def forward(self, ids, labels):
        hidden = torch.tanh(self.fc(self.table(ids)))
        logits = functional.linear(hidden, self.table.weight, self.bias)
        scores = logits[:, :-1].contiguous() if self.cut else logits
        labels = labels[:, 1:] if self.cut else labels
        loss = functional.cross_entropy(scores.reshape(-1, CLASSES), labels.reshape(-1), **self.options)
        return loss, logits


def batch(sequences=4):
    ids = torch.randint(0, CLASSES, (sequences, ROWS // 4))
    labels = ids.clone()
    labels[0, ::3] = -100
    return ids, labels


def gradients(module):
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def step(net, arguments, keep, loss_of=lambda output: output[0]):
    """(wrapper, loss, gradients)."""
    wrapped = ORTModule(copy.deepcopy(net), keep_outputs=keep)
    loss = loss_of(wrapped(*arguments))
    loss.backward()
    assert wrapped.fallback_reason is None
    return wrapped, loss.detach(), gradients(wrapped)


def assert_same_bits(found, expected):
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def steps_of(monkeypatch, net, arguments, keep, **more):
    """The same with an op for each step."""
    with monkeypatch.context() as patch:
        patch.setenv("LOWTIDE_DISABLE_PASSES", "fuse_linear_cross_entropy,fuse_linear_cross_entropy_grad")
        wrapped, *found = step(net, arguments, keep, **more)
        assert "LinearCrossEntropyLoss" not in wrapped.text("training")
    return wrapped, *found


NETS = {
    "tied": Head(),
    "no bias": Head(bias=False),
    "cut": Head(cut=True),
    "sum": Head(reduction="sum"),
    "smoothed": Head(label_smoothing=0.1),
}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("keep", [None, (0,)])
def test_the_one_op_has_the_bits_of_its_steps_and_eagers_numbers(name, keep, monkeypatch):
    net, arguments = NETS[name], batch()
    wrapped, loss, found = step(net, arguments, keep)
    op = "LinearCrossEntropyLoss" if keep else "LinearCrossEntropyLossGrad"
    # Where rows are cut off, a slice lies between the gradient and its products; and fewer rows are others to sum.
    assert (f" {op}(" in wrapped.text("training")) == (name != "cut" or keep is not None)
    if name != "cut":
        _, same_loss, same = steps_of(monkeypatch, net, arguments, keep)
        assert torch.equal(loss, same_loss)
        assert_same_bits(found, same)
    eager = copy.deepcopy(net)
    expected, _ = eager(*arguments)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-5)
    # A sum has as many terms of about 1 as there are rows; a mean's are smaller by as much.
    atol = 2**-20 * ROWS**0.5 if name == "sum" else 1e-6
    for key, gradient in gradients(eager).items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-4, atol=atol, msg=f"{name}: {key}")


def test_logits_that_are_not_returned_are_never_whole():
    arguments = batch()
    reports = {keep: step(NETS["no bias"], arguments, keep)[0].memory_report() for keep in (None, (0,))}
    # A block of 256 rows and a panel of 256 classes of it are there at a time; beside logits that are returned, a panel
    # of all rows.
    block, panel = LOGITS * 256 // ROWS, 4 * ROWS * 256
    assert reports[0,]["planned_peak_bytes"] < LOGITS
    found = reports[None]["planned_peak_bytes"] - reports[0,]["planned_peak_bytes"]
    assert found > 0.99 * (LOGITS + panel - block - panel * 256 // ROWS)
    assert block < reports[None]["arena_bytes"] < LOGITS


class Mean(torch.nn.Module):
    """The loss alone is read of it."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, ids, labels):
        return self.net(ids, labels)[0]


def half_step(net, arguments, dtype, autocast):
    wrapped = ORTModule(copy.deepcopy(net) if autocast else copy.deepcopy(net).to(dtype))
    for _ in range(2):  # the second adds to what the first left
        with torch.autocast("cpu", dtype, enabled=autocast):
            loss = wrapped(*arguments)
        loss.backward()
    assert wrapped.fallback_reason is None
    return wrapped, loss.detach(), gradients(wrapped)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NETS)
def test_logits_of_16_bits_lie_where_the_gradient_goes_and_change_no_bit(name, dtype, autocast, monkeypatch):
    net, arguments = Mean(NETS[name]), batch()
    wrapped, loss, found = half_step(net, arguments, dtype, autocast)
    assert " PanelLinearCrossEntropyLossGrad(" in wrapped.text("training")
    with monkeypatch.context() as patch:
        patch.setenv("LOWTIDE_DISABLE_PASSES", "panel_linear_cross_entropy")
        plain, same_loss, same = half_step(net, arguments, dtype, autocast)
    assert "Panel" not in plain.text("training")
    assert torch.equal(loss, same_loss)
    assert_same_bits(found, same)


@pytest.mark.parametrize("autocast", [False, True])
def test_logits_of_16_bits_and_the_gradient_share_bytes(autocast, monkeypatch):
    rows, width, classes = 1024, 256, 8192
    head = torch.nn.Linear(width, classes, bias=False)
    net = torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.LayerNorm(width), head)
    loss_of = WithLoss(net) if autocast else WithLoss(net).to(torch.bfloat16)
    x = torch.randn(rows, 16, dtype=torch.float32 if autocast else torch.bfloat16)
    labels = torch.randint(0, classes, (rows,))

    def peak():
        wrapped = ORTModule(copy.deepcopy(loss_of))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            wrapped(x, labels).backward()
        assert wrapped.fallback_reason is None
        return wrapped.memory_report()["planned_peak_bytes"]

    found = peak()
    monkeypatch.setenv("LOWTIDE_DISABLE_PASSES", "panel_linear_cross_entropy")
    assert peak() - found > 0.9 * 2 * classes * width


class WithLoss(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, labels):
        return functional.cross_entropy(self.net(x), labels)


@pytest.mark.parametrize("keep", [None, (0,)])
def test_a_factor_on_the_loss_reaches_every_gradient(keep):
    net, arguments = NETS["tied"], batch()
    _, _, plain = step(net, arguments, keep)
    _, _, scaled = step(net, arguments, keep, loss_of=lambda output: output[0] * 0.25)
    for name, gradient in plain.items():
        torch.testing.assert_close(scaled[name], gradient * 0.25)


def test_a_gradient_of_the_logits_is_added(monkeypatch):
    net, arguments = NETS["tied"], batch()

    def both(output):
        return output[0] + output[1].square().mean()

    wrapped, loss, found = step(net, arguments, None, loss_of=both)
    assert " LinearCrossEntropyLossGrad(" in wrapped.text("training")
    _, same_loss, same = steps_of(monkeypatch, net, arguments, None, loss_of=both)
    assert torch.equal(loss, same_loss)
    assert_same_bits(found, same)
    # The same graph, now without that gradient, and with it again.
    for again in (lambda output: output[0], both):
        wrapped.zero_grad()
        again(wrapped(*arguments)).backward()
    assert_same_bits(gradients(wrapped), found)


def test_a_frozen_table_costs_no_product():
    net = copy.deepcopy(NETS["no bias"])
    net.table.requires_grad_(False)
    wrapped, _, found = step(net, batch(), (0,))
    line = next(line for line in wrapped.text("training").splitlines() if " LinearCrossEntropyLoss(" in line)
    assert line.count("f32[") == 2 and ", _, _ = " in line
    assert found["table.weight"] is None and found["fc.weight"] is not None


def test_evaluation_makes_no_gradients():
    wrapped = ORTModule(Loss(functional.cross_entropy))
    x, labels = torch.randn(20, WIDTH), torch.randint(0, CLASSES, (20,))
    with torch.no_grad():
        wrapped(x, labels)
    line = next(line for line in wrapped.text("training").splitlines() if " LinearCrossEntropyLoss(" in line)
    assert ", _, _, _ = " in line


def test_no_label_that_counts_gives_nan_and_zeros():
    net, (ids, labels) = NETS["tied"], batch()
    _, loss, found = step(net, (ids, torch.full_like(labels, -100)), (0,))
    assert torch.isnan(loss)
    assert all(gradient.abs().max() == 0 for gradient in found.values())


def test_threads_change_no_bit():
    net, arguments = NETS["tied"], batch()
    found, before = [], torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(step(net, arguments, (0,)))
    torch.set_num_threads(before)
    assert torch.equal(found[0][1], found[1][1])
    assert_same_bits(found[0][2], found[1][2])


class Loss(torch.nn.Module):
    """Of a layer of its own, by a function of (x, weight, labels, bias) or of logits."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = torch.nn.Linear(WIDTH, CLASSES), function

    def forward(self, x, labels):
        if self.function is functional.cross_entropy:
            return self.function(self.layer(x), labels)
        return self.function(x, self.layer.weight, labels, linear_bias=self.layer.bias)


@pytest.mark.skipif(not hasattr(functional, "linear_cross_entropy"), reason="PyTorch 2.13 has the function")
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_pytorchs_linear_cross_entropy_is_the_same_op(chunked, reduction):
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=8) if chunked else None

    def function(*args, **kwargs):
        return functional.linear_cross_entropy(*args, reduction=reduction, options=options, **kwargs)

    net = Loss(function)
    wrapped = ORTModule(copy.deepcopy(net))
    for rows in (40, 24):
        x, labels = torch.randn(rows, WIDTH), torch.randint(0, CLASSES, (rows,))
        for module in (wrapped, net):
            module.zero_grad()
            module(x, labels).backward()
        assert wrapped.fallback_reason is None
        for (name, found), expected in zip(wrapped.named_parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=2**-20 * rows**0.5, msg=name)
    assert " LinearCrossEntropyLoss(" in wrapped.text("training")
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1}}
