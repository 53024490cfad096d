"""What a view needs copied is copied once, where the caller is owed bytes of his own too; a single channel lies
channels-last as it is."""

import pytest
import torch
from torch import nn

from lowtide.ortmodule import DebugOptions, ORTModule


def shuffled(x):
    return x.view(x.shape[0], 3, 4).transpose(1, 2).reshape(x.shape[0], 12)


class Shuffle(nn.Module):
    def forward(self, x):
        return shuffled(x)


class Cloned(nn.Module):
    def forward(self, x):
        return shuffled(x).clone()


class ClonedAndRead(nn.Module):
    """Backward of the sine reads what the caller may change in the clone."""

    def forward(self, x):
        y = shuffled(x)
        return y.clone(), y.sin()


class ClonedAndShown(nn.Module):
    def forward(self, x):
        y = shuffled(x)
        return y.clone(), y


class ClonedTwice(nn.Module):
    def forward(self, x):
        y = shuffled(x)
        return y.clone(), y.view(-1, 6).clone()


def copies(text):
    """In forward and in backward."""
    forward, backward = text.split('region "backward"')
    return forward.count('step kernel "cpu.Copy"'), backward.count('step kernel "cpu.Copy"')


def steps(module, engine):
    """Outputs, changed in place before backward, and the gradient of each."""
    found = []
    for call in (module, engine):
        x = torch.arange(60, dtype=torch.float64).view(5, 12).sin().requires_grad_()
        outputs = call(x)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        results = [each.detach().clone() for each in outputs]
        incoming = [torch.full_like(each, index + 2.0) for index, each in enumerate(outputs)]
        with torch.no_grad():
            outputs[0].data.mul_(7)
        torch.autograd.backward(outputs, incoming)
        assert x.grad.data_ptr() not in [each.data_ptr() for each in incoming]
        assert len({each.data_ptr() for each in (x, *outputs)}) == len(outputs) + 1
        found.append([*results, *(each.detach() for each in outputs), x.grad, *incoming])
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("make", [Shuffle, Cloned, ClonedAndRead, ClonedAndShown, ClonedTwice])
def test_a_copy_of_a_view_that_was_copied_takes_its_bytes(make):
    module = make()
    engine = ORTModule(module, DebugOptions())
    steps(module, engine)
    steps(module, engine)
    assert engine.fallback_reason is None
    if make in (Shuffle, Cloned):
        assert copies(engine.text("program")) == (1, 1)


def test_a_single_channel_is_convolved_where_it_lies():
    """Row-major and channels-last differ in the stride of the channel alone, which no one takes."""
    engine = ORTModule(nn.Conv2d(1, 4, 3), DebugOptions())
    x = torch.randn(2, 1, 8, 8)
    engine(x).sum().backward()
    assert copies(engine.text("program")) == (1, 1)  # of the result, to lie row by row, and of the incoming gradient
    torch.testing.assert_close(engine(x), engine.module(x))
