"""Recurrent layers over sequences of many lengths: one graph, PyTorch's results."""

import warnings

import pytest
import torch

from lowtide.ortmodule import ORTModule

KINDS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}


class Tagger(torch.nn.Module):
    def __init__(self, kind, **settings):
        super().__init__()
        self.layer = KINDS[kind](4, 6, dtype=torch.float64, **settings)
        self.head = torch.nn.LazyLinear(3, dtype=torch.float64)

    def forward(self, x, states=None):
        rows, states = self.layer(x, states)
        return self.head(rows.tanh()), states


def step(model, x, states):
    model.zero_grad()
    x = x.clone().requires_grad_()
    out, states = model(x, states)
    states = states if isinstance(states, tuple) else (states,)
    (out.square().sum() + sum(state.sin().sum() for state in states)).backward()
    return [out, *states, x.grad, *(p.grad for p in model.parameters())]


BOTH_WAYS, BATCH_FIRST = {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "bias": False}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        *((kind, settings) for kind in KINDS for settings in ({}, BOTH_WAYS, BATCH_FIRST)),
        ("rnn", {"nonlinearity": "relu"}),
    ],
)
def test_lengths_share_a_graph(kind, settings):
    model = Tagger(kind, **settings)
    model(torch.ones(2, 2, 4, dtype=torch.float64))
    wrapped = ORTModule(model)
    for length, batch in ((7, 3), (5, 3), (1, 2), (12, 1), (3, 3)):
        shape = (batch, length, 4) if settings.get("batch_first") else (length, batch, 4)
        x = torch.randn(shape, dtype=torch.float64)
        expected = step(model, x, None)
        expected = [each.detach().clone() for each in expected]
        torch.testing.assert_close(step(wrapped, x, None), expected)
        assert wrapped.fallback_reason is None
    assert wrapped.transition_counts()["in training mode"] == {"first call": 1}


def test_states_go_from_call_to_call():
    model = Tagger("lstm", proj_size=2, num_layers=2)
    model(torch.ones(2, 2, 4, dtype=torch.float64))
    wrapped, ours, theirs = ORTModule(model), None, None
    for length in (4, 6, 3, 5):
        x = torch.randn(length, 2, 4, dtype=torch.float64)
        (out, theirs), (same, ours) = model(x, theirs), wrapped(x, ours)
        torch.testing.assert_close((same, ours), (out, theirs))
    assert wrapped.transition_counts()["in training mode"] == {"first call": 1, "argument": 1}


def test_an_unbatched_sequence():
    model = Tagger("gru")
    model(torch.ones(2, 4, dtype=torch.float64))
    wrapped = ORTModule(model)
    for length in (4, 6, 3):
        x = torch.randn(length, 4, dtype=torch.float64)
        expected = [each.detach().clone() for each in step(model, x, None)]
        torch.testing.assert_close(step(wrapped, x, None), expected)
    assert wrapped.transition_counts()["in training mode"] == {"first call": 1}


def test_a_length_that_forward_computes():
    """PyTorch's own trace of a GRU errs where the length is a formula."""

    class Speech(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.halve = torch.nn.Conv1d(4, 4, 3, 2, 1, dtype=torch.float64)
            self.tag = Tagger("gru", batch_first=True)

        def forward(self, x, states=None):
            return self.tag(self.halve(x).transpose(1, 2), states)

    model = Speech()
    model(torch.ones(2, 4, 8, dtype=torch.float64))
    wrapped = ORTModule(model)
    for length in (8, 12, 7):
        x = torch.randn(2, 4, length, dtype=torch.float64)
        expected = [each.detach().clone() for each in step(model, x, None)]
        torch.testing.assert_close(step(wrapped, x, None), expected)
        assert wrapped.fallback_reason is None
    assert wrapped.transition_counts()["in training mode"] == {"first call": 1}


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_autocast_around_a_layer_gives_its_dtypes(kind):
    model = Tagger(kind).float()
    model(torch.ones(2, 2, 4))
    wrapped, x = ORTModule(model), torch.randn(5, 2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        expected, ours = model(x), wrapped(x)
    torch.testing.assert_close(ours, expected, rtol=0.05, atol=0.05)


def test_an_export_says_nothing_of_a_layers_weights():
    model = Tagger("lstm")
    model(torch.ones(2, 2, 4, dtype=torch.float64))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        ORTModule(model)(torch.ones(3, 2, 4, dtype=torch.float64))
    assert not [str(each.message) for each in heard]
