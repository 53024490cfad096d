"""Embeddings whose gradients are sparse: PyTorch's, and what reads their rows is a piece in the engine."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F

from lowtide.ortmodule import ORTModule


class SkipGrams(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.centres = torch.nn.Embedding(40, 6, sparse=True)
        self.contexts = torch.nn.Embedding(40, 6, sparse=True)

    def forward(self, centres, contexts):
        found, sought = self.centres(centres), self.contexts(contexts)
        others = self.contexts(contexts.flip(0))
        return -F.logsigmoid((found * sought).sum(1)).mean() - F.logsigmoid(-(found * others).sum(1)).mean()


class Bags(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(40, 6, mode="sum", sparse=True)
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))

    def forward(self, first, second):
        return self.net(self.bag(torch.stack((first, second), 1))).square().mean()


@pytest.mark.parametrize("kind", [SkipGrams, Bags])
def test_they_train_beside_pieces(kind, monkeypatch):
    monkeypatch.setenv("LOWTIDE_PIECES", "1")
    torch.manual_seed(0)
    module = kind().double()
    ours = copy.deepcopy(module)
    wrapped = ORTModule(ours)
    steps = []
    for model in (module, ours):
        sparse = [child.weight for child in model.modules() if getattr(child, "sparse", False)]
        dense = [parameter for parameter in model.parameters() if all(parameter is not each for each in sparse)]
        steps.append([torch.optim.SparseAdam(sparse), *([torch.optim.Adam(dense)] if dense else [])])
    for batch in (5, 8, 5, 9):
        arguments = torch.randint(40, (batch,)), torch.randint(40, (batch,))
        losses = []
        for model, optimizers in zip((module, wrapped), steps, strict=True):
            loss = model(*arguments)
            model.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss)
        torch.testing.assert_close(*losses)
        for expected, found in zip(module.parameters(), ours.parameters(), strict=True):
            assert found.grad.is_sparse == expected.grad.is_sparse
            torch.testing.assert_close(found.grad.to_dense(), expected.grad.to_dense())
            torch.testing.assert_close(found, expected)
    assert re.match(r"(\d) of \1 pieces in the engine", wrapped.fallback_reason)
    assert "forward asks for sparse gradients" in wrapped.fallback_reason
    assert all("forward" not in vars(child) for child in ours.modules())
