"""Recurrent layers under torch.autocast, which has a rule for each kind: eager's dtypes and numbers, in the engine."""

import copy

import pytest
import torch

from lowtide.compile_backend import lowtide
from lowtide.ortmodule import ORTModule


class Tagger(torch.nn.Module):
    def __init__(self, cls, is_packed, begins, **settings):
        super().__init__()
        self.layer = cls(8, 8, batch_first=True, **settings)
        self.l, self.is_packed, self.begins = torch.nn.Linear(8, 8), is_packed, begins

    def forward(self, x, lengths):
        x = x if self.begins else self.l(x)
        if self.is_packed:
            packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            out, last = self.layer(packed)
            out, _ = torch.nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        else:
            out, last = self.layer(x)
        return out, last[0] if isinstance(last, tuple) else last


CASES = [
    pytest.param(cls, is_packed, begins, id=f"{cls.__name__}-{'packed' if is_packed else 'plain'}-{begins}")
    for cls in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN)
    for is_packed in (False, True)
    for begins in (True, False)
]


def assert_same_steps(wrapped, module, eager):
    for steps in (5, 6):
        x, lengths = torch.randn(3, steps, 8), torch.tensor([steps, 4, 2])
        outputs = []
        for run in (wrapped, eager):
            with torch.autocast("cpu", torch.bfloat16):
                outputs.append(run(x, lengths))
            (outputs[-1][0].float().square().sum() + outputs[-1][1].float().sum()).backward()
        for ours, theirs in zip(*outputs, strict=True):
            assert ours.dtype == theirs.dtype
            torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.01)
        for (name, one), other in zip(module.named_parameters(), eager.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None), name
            if one.grad is not None:
                torch.testing.assert_close(one.grad, other.grad, rtol=0.05, atol=0.05, msg=name)


@pytest.mark.parametrize("cls, is_packed, begins", CASES)
def test_steps_are_eagers(cls, is_packed, begins):
    torch.manual_seed(0)
    module = Tagger(cls, is_packed, begins)
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    assert_same_steps(wrapped, module, eager)
    assert wrapped.fallback_reason is None


@pytest.mark.parametrize("cls", [torch.nn.LSTM, torch.nn.GRU])
def test_two_layers_of_two_directions_through_torch_compile(cls):
    torch.manual_seed(0)
    module = Tagger(cls, False, True, num_layers=2, bidirectional=True)
    eager = copy.deepcopy(module)
    assert_same_steps(torch.compile(module, backend=lowtide), module, eager)
