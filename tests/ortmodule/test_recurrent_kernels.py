"""Recurrent layers in the engine's own kernels: PyTorch's numbers in every form that has any."""

import copy

import pytest
import torch
from torch import nn

from lowtide.ortmodule import ORTModule

KINDS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn_tanh": nn.RNN,
    "rnn_relu": lambda *sizes, **settings: nn.RNN(*sizes, nonlinearity="relu", **settings),
}
FORMS = {
    "one layer": {},
    "two layers, both ways": {"num_layers": 2, "bidirectional": True},
    "without biases": {"bias": False, "batch_first": True},
    "both ways": {"bidirectional": True, "batch_first": True},
}
TOLERANCE = {torch.float32: {"rtol": 1e-4, "atol": 2e-5}, torch.float64: {"rtol": 1e-9, "atol": 1e-11}}


class Packed(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, lengths):
        first = self.layer.batch_first
        rows = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=False)
        out, last = self.layer(rows)
        out, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=first, total_length=x.size(1 if first else 0))
        return out, last


def results_and_gradients(model, *arguments):
    model.zero_grad()
    arguments = [each.clone().requires_grad_(each.is_floating_point()) for each in arguments]
    out, last = model(*arguments)
    last = last if isinstance(last, tuple) else (last,)
    (out.square().sum() + sum((index + 1) * state.sin().sum() for index, state in enumerate(last))).backward()
    gradients = [each.grad for each in (*arguments, *model.parameters()) if each.requires_grad]
    return [each.detach().clone() for each in (out, *last, *gradients)]


@pytest.fixture
def compare(caplog):
    """Three calls of a layer and of its copy in the engine, which has all of it."""

    def compared(layer, make_arguments):
        wrapped = ORTModule(copy.deepcopy(layer))
        for index in range(3):
            arguments = make_arguments(index)
            expected = results_and_gradients(layer, *arguments)
            found = results_and_gradients(wrapped, *arguments)
            torch.testing.assert_close(found, expected, **TOLERANCE[expected[0].dtype])
        assert wrapped.fallback_reason is None
        assert "0 on PyTorch's kernels, 0 through Python" in caplog.text

    return compared


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_sequences(compare, kind, form, dtype):
    layer = KINDS[kind](20, 33, dtype=dtype, **FORMS[form])
    compare(layer, lambda index: [torch.randn(7 + index, 5 + 3 * index, 20, dtype=dtype)])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences(compare, kind, form, dtype):
    layer = KINDS[kind](12, 17, dtype=dtype, **FORMS[form])

    def arguments(index):
        shape = (6, 9, 12) if layer.batch_first else (9, 6, 12)
        return [torch.randn(shape, dtype=dtype), torch.tensor([9, 1, 4, 9 - index, 2 + index, 7])]

    compare(Packed(layer), arguments)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("frozen", ["weight_hh_l0", "weight_ih_l0", "weight", "bias"])
def test_frozen_parameters(compare, kind, frozen):
    layer = KINDS[kind](8, 9, dtype=torch.float64)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    compare(layer, lambda index: [torch.randn(4, 3 + index, 8, dtype=torch.float64)])


class WithStates(nn.Module):
    """States that are given, and of the results those alone that came last."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, *states):
        return self.layer(x, states if len(states) > 1 else states[0])[1][0], ()


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_given_and_the_last_ones_read(compare, kind):
    layer = WithStates(KINDS[kind](8, 9, 2, dtype=torch.float64))
    states = 2 if kind == "lstm" else 1
    compare(
        layer,
        lambda index: [
            torch.randn(4 + index, 3, 8, dtype=torch.float64),
            *(torch.randn(2, 3, 9, dtype=torch.float64) for _ in range(states)),
        ],
    )


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_between_layers(kind):
    layer = KINDS[kind](16, 40, 2, dropout=0.25)
    wrapped, x = ORTModule(copy.deepcopy(layer)), torch.randn(6, 2, 16)
    (out, last), (other, _) = wrapped(x), wrapped(x)
    expected, states = layer.eval()(x)
    first, wanted = (last[0], states[0]) if kind == "lstm" else (last, states)
    torch.testing.assert_close(first[0], wanted[0])  # nothing is dropped before the first layer
    assert not torch.allclose(out, expected, atol=1e-3) and not torch.allclose(out, other, atol=1e-3)
    torch.testing.assert_close(wrapped.eval()(x)[0], expected)


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_threads_change_no_bit(kind, threads):
    layer, x = KINDS[kind](20, 33, 2, bidirectional=True), torch.randn(9, 37, 20)
    wrapped, before = ORTModule(layer), torch.get_num_threads()
    first = results_and_gradients(wrapped, x)
    try:
        torch.set_num_threads(threads)
        again = results_and_gradients(wrapped, x)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_a_layer_keeps_less_than_pytorch_does():
    """Gates, memories and states of a step; what leads to them goes."""
    layer = nn.LSTM(64, 128)
    wrapped, x = ORTModule(layer), torch.randn(40, 32, 64)
    wrapped(x)[0].square().mean().backward()
    numbers = 40 * 32 * 128
    assert wrapped.memory_report()["planned_peak_bytes"] < 4 * (
        10 * numbers + 3 * sum(p.numel() for p in layer.parameters())
    )


@pytest.mark.parametrize("budget", ["90%", "80%"])
def test_a_budget_changes_no_bit(budget):
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.LSTM(32, 64, 2, batch_first=True, dropout=0.2)
            self.second = nn.GRU(64, 32, batch_first=True, bidirectional=True)

        def forward(self, x):
            return self.second(self.first(x)[0])[0].square().mean()

    def step(module):
        torch.manual_seed(7)
        loss = module(x)
        loss.backward()
        return [loss.detach(), *(p.grad for p in module.parameters())]

    torch.manual_seed(0)
    plain, x = Tagger(), torch.randn(8, 40, 32)
    within, without = ORTModule(copy.deepcopy(plain), memory_budget=budget), ORTModule(plain)
    assert all(torch.equal(one, other) for one, other in zip(step(within), step(without), strict=True))
    peaks = [module.memory_report()["planned_peak_bytes"] for module in (within, without)]
    assert peaks[0] <= float(budget.rstrip("%")) / 100 * peaks[1]


@pytest.mark.parametrize("kind", KINDS)
def test_no_steps_are_a_mistake_and_no_rows_are_none(kind):
    layer = KINDS[kind](3, 4)
    wrapped = ORTModule(copy.deepcopy(layer))
    for rows in (2, 0, 1):
        x = torch.randn(5, rows, 3)
        torch.testing.assert_close(wrapped(x), layer(x))
    for module in (layer, wrapped):
        with pytest.raises(RuntimeError, match="Expected sequence length to be larger than 0 in RNN"):
            module(torch.randn(0, 2, 3))


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_a_layer_between_breaks_is_in_a_piece(with_pieces):
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.layer, self.after = nn.Linear(3, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 2)

        def forward(self, x):
            x = self.before(x).tanh()
            x = x * 2 if int((x > 0).sum()) % 2 else x * 3
            return self.after(self.layer(x)[0])

    module, x = Branching(), torch.randn(2, 5, 3)
    wrapped = ORTModule(copy.deepcopy(module))
    for _ in range(2):
        expected, found = module(x), wrapped(x)
        torch.testing.assert_close(found, expected)
        for each in (expected, found):
            each.square().sum().backward()
    for one, other in zip(module.parameters(), wrapped.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad)
    assert "2 of 2 pieces in the engine" in wrapped.fallback_reason
