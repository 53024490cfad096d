"""Three images with keypoints as their data has them, padded to the most of any: where a row of the padded gradient
begins is known later than how long it is, and its kernel is prepared once both are."""

import copy

import pytest
import torch

from lowtide.ortmodule import ORTModule


class Keypoints(torch.nn.Module):
    def __init__(self, border):
        super().__init__()
        self.scores = torch.nn.Conv2d(3, 1, 3, padding=1)
        self.border = border

    def forward(self, images):
        found = []
        for index in range(images.shape[0]):
            scores = self.scores(images[index : index + 1]).sigmoid()[0, 0]
            places = torch.nonzero(scores > 0.5)
            kept = scores[tuple(places.t())]
            if self.border:
                kept = kept[(places[:, 0] >= 1) & (places[:, 1] < 5)]
            found.append(kept)
        padded = images.new_zeros((images.shape[0], max(kept.shape[0] for kept in found)))
        for index, kept in enumerate(found):
            padded[index, : kept.shape[0]] = kept
        return padded.square().sum()


@pytest.mark.parametrize("border", [False, True])
def test_they_train_in_one_graph(border):
    torch.manual_seed(0)
    eager = Keypoints(border).double()
    wrapped = ORTModule(copy.deepcopy(eager))
    for _ in range(4):
        images = torch.randn(3, 3, 8, 8, dtype=torch.float64)
        losses = []
        for module in (eager, wrapped):
            module.zero_grad()
            losses.append(module(images))
            losses[-1].backward()
        assert wrapped.fallback_reason is None
        assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-12)
        for ours, theirs in zip(wrapped.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12)
