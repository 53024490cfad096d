"""Compressed stashes ("MaxPool+:3:-1"): training gives the same bits as without."""

import pytest
import torch

from lowtide.ortmodule import ORTModule


class Net(torch.nn.Module):
    """Indices of two max pools, a mask made in forward and an argmax wait for backward."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.second = torch.nn.Conv2d(16, 32, 3, padding=1)
        self.out = torch.nn.Linear(32 * 8 * 8, 10)
        self.table = torch.nn.Embedding(10, 10)

    def forward(self, x, mask):
        x = torch.nn.functional.max_pool2d(torch.tanh(self.first(x)), 2)
        x = torch.nn.functional.max_pool2d(torch.tanh(self.second(x)), 2)
        y = self.out(x.flatten(1))
        y = torch.where(mask > 0, y, torch.full_like(y, -1.0))
        y = torch.nn.functional.dropout(y * self.table(y.argmax(-1)), 0.2)
        return y.square().mean()


def train(config, monkeypatch):
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", config)
    torch.manual_seed(0)
    model = ORTModule(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    results = []
    for step in range(3):
        torch.manual_seed(step + 1)
        x, mask = torch.randn(8, 3, 32, 32), torch.randint(-2, 3, (8, 10))
        optimizer.zero_grad()
        loss = model(x, mask)
        loss.backward()
        results += [loss.detach().clone(), *(parameter.grad.clone() for parameter in model.parameters())]
        optimizer.step()
    return results, model.text("training")


@pytest.mark.parametrize(
    ("config", "packed"),
    [("MaxPool+:3:-1", 2), ("MaxPool+:3:1", 1), ("Greater+:3:-1", 1), ("MaxPool+:3:-1,Greater+:3:-1,ArgMax+:3:-1", 4)],
)
def test_compressed_stashes_change_no_bit(config, packed, monkeypatch):
    expected, plain = train("", monkeypatch)
    found, text = train(config, monkeypatch)
    assert plain.count(" = PackBits") == 0
    assert text.count(" = PackBits") == text.count(" = UnpackBits") == packed
    assert len(found) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
