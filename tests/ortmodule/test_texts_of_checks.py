"""What a check would say is no part of what forward computes. (transformers writes how many places for images a text
has before it knows whether they are too many: seventy models came in pieces, or had a graph for each size.)"""

import copy

import pytest
import torch

from lowtide.ortmodule import ORTModule


def check(is_right, message=None, error=ValueError):
    if torch.compiler.is_compiling():
        (torch._check_tensor_all if isinstance(is_right, torch.Tensor) else torch._check)(is_right)
    elif not is_right:
        raise error(message)


def of_a_tensor(places, images):
    count = places.sum()
    check(count == images.shape[0], f"{count} places, {images.shape[0]} images")


def of_several_lines(places, images):
    count = places.sum()
    check(
        count == images.shape[0],
        f"as many places as images were expected, found {count} "
        f"places and {images.shape[0]} images, {count - images.shape[0]} too many",
        TypeError,
    )


def by_name(places, images):
    check(images[places[places]].numel() <= images.numel(), message=f"{places.sum()} places")


def of_a_size(places, images):
    check(images.shape[0] > 0, f"{images.shape[0]} images")


class PutsImagesIn(torch.nn.Module):
    def __init__(self, check):
        super().__init__()
        self.embedding, self.project, self.check = torch.nn.Embedding(9, 4), torch.nn.Linear(6, 4), check

    def forward(self, ids, images):
        places, images = ids == 5, self.project(images)
        self.check(places, images)
        return self.embedding(ids).masked_scatter(places.unsqueeze(-1), images).square().sum()


def assert_trains_as_eager(module, wrapped):
    for rows in (2, 3, 5):
        ids = torch.arange(6).repeat(rows, 1)
        images = torch.randn(rows, 6, dtype=torch.float64)
        losses = [each(ids, images) for each in (wrapped, module)]
        for loss in losses:
            loss.backward()
        torch.testing.assert_close(*losses)
    torch.testing.assert_close([p.grad for p in wrapped.parameters()], [p.grad for p in module.parameters()])


@pytest.mark.parametrize("function", [of_a_tensor, of_several_lines, by_name, of_a_size])
def test_one_graph_of_all_sizes(function):
    module = PutsImagesIn(function).double()
    wrapped = ORTModule(copy.deepcopy(module))
    assert_trains_as_eager(module, wrapped)
    assert wrapped.fallback_reason is None
    assert wrapped.transition_counts()["in training mode"] == {"first call": 1}


def test_a_text_that_is_kept_is_no_message(monkeypatch):
    monkeypatch.setenv("LOWTIDE_PIECES", "1")
    kept = {}
    module = PutsImagesIn(lambda places, images: kept.setdefault(f"{places.sum()} places", len(kept)))
    wrapped = ORTModule(copy.deepcopy(module))
    wrapped(torch.arange(6).repeat(2, 1), torch.randn(2, 6))
    assert "forward makes a text of a tensor" in wrapped.fallback_reason
