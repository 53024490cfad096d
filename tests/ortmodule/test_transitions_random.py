"""A thousand calls of every kind in a random order: right results at each, few exports, no growth of memory."""

import copy
import gc
import os
import random
from pathlib import Path

import pytest
import torch

from lowtide.ortmodule import ORTModule


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(11, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.fc = torch.nn.Linear(8, 8)

    def forward(self, ids, mask=None, bias=None, scale=1.0, steps=1):
        y = self.fc(torch.tanh(self.embed(ids)))
        if mask is not None:
            y = y * mask[:, :, None]
        y = self.norm(y.flatten(0, 1))
        y = y * scale if bias is None else y * (1 - scale) + bias
        return y / (1 + steps)


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("steps", [60, pytest.param(1000, marks=pytest.mark.long)])
def test_random_steps(steps):
    torch.manual_seed(0)
    draw = random.Random(0)
    eager = Net()
    wrapped = ORTModule(copy.deepcopy(eager))
    ours, theirs = (torch.optim.SGD(module.parameters(), lr=1e-3) for module in (wrapped, eager))
    held = []
    for number in range(steps):
        if draw.random() < 0.1:
            mode = draw.random() < 0.5
            eager.train(mode), wrapped.train(mode)
        shape = draw.randint(2, 9), draw.randint(1, 12)
        call = {"ids": torch.randint(0, 11, shape)}
        if draw.random() < 0.5:
            call["mask"] = torch.rand(shape) if draw.random() < 0.7 else None
        if draw.random() < 0.3:
            call["bias"] = torch.randn(8)
        if steps == 1000:
            call.update(scale=draw.random(), steps=number)
        with_gradients = draw.random() < 0.8
        with torch.set_grad_enabled(with_gradients):
            found, expected = wrapped(**call), eager(**call)
        assert wrapped.fallback_reason is None
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
        if with_gradients:
            for optimizer, output in ((ours, found), (theirs, expected)):
                optimizer.zero_grad()
                output.square().mean().backward()
            for (name, p), q in zip(wrapped.named_parameters(), eager.parameters(), strict=True):
                torch.testing.assert_close(
                    p.grad, q.grad, rtol=1e-3, atol=1e-4, msg=lambda text, n=name: f"{n}: {text}"
                )
            ours.step(), theirs.step()
        with torch.no_grad():  # so that rounding does not add up over the steps
            for p, q in zip(
                (*wrapped.parameters(), *wrapped.buffers()), (*eager.parameters(), *eager.buffers()), strict=True
            ):
                p.copy_(q)
        if number % (steps // 10) == steps // 10 - 1:
            gc.collect()
            held.append(resident_bytes())
    exports = {mode: sum(counts.values()) for mode, counts in wrapped.transition_counts().items()}
    assert len(exports) == 4 and all(count <= 6 for count in exports.values())
    assert max(held[5:]) - held[4] < 8e6, held
