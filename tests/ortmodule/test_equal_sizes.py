"""Sizes that a model takes as one, though torch.export does not replace one by the other, or does not even ask."""

import copy

import pytest
import torch
import torch.nn.functional as F
from modules import Of, assert_same, step, x

from lowtide import compile_backend
from lowtide.ortmodule import ORTModule


def labels(*shape):
    return torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(2))


def sum_of_two_and_two(m, image, text, image_angles, text_angles):
    """As in Flux: tokens of text and image, and the angles of their positions."""
    angles = torch.cat([text_angles, image_angles])
    return torch.cat([m.l(text), m.l(image)], 1) * angles[None, :, None]


def segmentation(m, image, wanted):
    return F.cross_entropy(m.conv(image), wanted)


def flat_segmentation(m, image, wanted):
    return F.cross_entropy(m.conv(image).permute(0, 2, 3, 1).reshape(-1, 4), wanted.view(-1))


def upsampled_segmentation(m, image, wanted):
    return F.cross_entropy(F.interpolate(m.conv(image), scale_factor=2, mode="bilinear"), wanted)


def pooled_beyond_the_image(m, image):
    return F.avg_pool2d(m.conv(image), 64, ceil_mode=True) + F.max_pool2d(m.conv(image), 64, ceil_mode=True)


def bias_of_scores(m, hidden, bias):
    """As in WavLM: that the bias is as wide as it is high follows from the number of its elements alone."""
    batch, length, _ = hidden.shape
    bias = (m.l(hidden).sum(2, keepdim=True) * bias).view(-1, length, length)
    if bias.shape != (batch, length, length):
        raise ValueError
    return torch.baddbmm(bias, m.l(hidden), hidden.transpose(1, 2)) / length


CASES = {
    sum_of_two_and_two: [
        (x(2, 6, 4), x(2, 3, 4), x(6), x(3)),
        (x(2, 8, 4), x(2, 5, 4), x(8), x(5)),
    ],
    segmentation: [(x(b, 3, 8, 8), labels(b, 8, 8)) for b in (2, 3)],
    flat_segmentation: [(x(b, 3, 8, 8), labels(b, 8, 8)) for b in (2, 3)],
    upsampled_segmentation: [(x(b, 3, 8, 8), labels(b, 16, 16)) for b in (2, 3)],
    bias_of_scores: [(x(b, n, 4), x(b, n, n)) for b, n in ((2, 5), (3, 7))],
    pooled_beyond_the_image: [(x(b, 3, 8, 8),) for b in (2, 3)],
}


@pytest.mark.parametrize("forward", CASES, ids=lambda forward: forward.__name__)
def test_one_graph_serves_all_sizes_that_fit(forward):
    module = Of(forward, conv=torch.nn.Conv2d(3, 4, 3, padding=1))
    wrapped = ORTModule(copy.deepcopy(module))
    agents = set()
    for arguments in CASES[forward]:
        assert_same(step(wrapped, arguments), step(module, arguments), rtol=1e-5, atol=1e-5)
        assert wrapped.fallback_reason is None
        agents.add(wrapped._training_manager.last_agent)
    assert len(agents) == 1


def test_label_maps_of_another_height_find_a_graph_of_their_own():
    module = Of(segmentation, conv=torch.nn.Conv2d(3, 4, 3, padding=1))
    wrapped = ORTModule(copy.deepcopy(module))
    for height in (8, 12, 10):
        arguments = x(2, 3, height, 8), labels(2, height, 8)
        assert_same(step(wrapped, arguments), step(module, arguments))
        assert wrapped.fallback_reason is None


def test_labels_that_do_not_fit_are_pytorchs_error():
    module = Of(segmentation, conv=torch.nn.Conv2d(3, 4, 3, padding=1))
    wrapped = ORTModule(copy.deepcopy(module))
    step(wrapped, (x(2, 3, 8, 8), labels(2, 8, 8)))
    with pytest.raises(RuntimeError, match="size"):
        wrapped(x(2, 3, 8, 8), labels(2, 7, 8))


def in_chunks(m, hidden, wanted):
    """As in Canine: the loop knows the length, and nothing but the loss ties the labels' to it."""
    chunks = [m.l(hidden[:, start : start + 2]) for start in range(0, hidden.shape[1], 2)]
    return F.cross_entropy(torch.cat(chunks, 1).view(-1, 4), wanted.view(-1))


def test_labels_as_long_as_a_number_need_one_export(exports, pieces):
    module = Of(in_chunks)
    compiled = copy.deepcopy(module)
    compiled.compile(backend=compile_backend.lowtide)
    for batch, length in ((2, 6), (3, 8), (5, 8)):
        arguments = x(batch, length, 4), labels(batch, length)
        assert_same(step(compiled, arguments), step(module, arguments))
    assert (len(pieces), len(exports)) == (2, 2)
    assert [piece.fallback_reason for piece in pieces] == [None, None]


def in_heads(m, hidden):
    """As in Yoso: after the break batch is a number of its own, and a product of sizes tells what it is."""
    batch, length, _ = hidden.shape
    heads = m.l(hidden).view(batch, length, 2, 2).transpose(1, 2).reshape(2 * batch, length, 2)
    torch._dynamo.graph_break()
    return F.normalize(heads, dim=-1).reshape(batch, 2, length, 2).transpose(1, 2).reshape(batch, length, 4)


def test_a_number_that_follows_from_a_product_of_sizes(pieces):
    module = Of(in_heads)
    compiled = copy.deepcopy(module)
    compiled.compile(backend=compile_backend.lowtide)
    for batch, length in ((2, 6), (3, 8), (5, 7)):
        arguments = (x(batch, length, 4),)
        assert_same(step(compiled, arguments), step(module, arguments), rtol=1e-5, atol=1e-5)
    assert [piece.fallback_reason for piece in pieces] == [None] * 4


def in_pairs(m, rows, batch):
    """As in SuperGlue: 2 and -1 in the place of rows that are twice the batch, which comes as a number."""
    length, width = rows.shape[1:]
    pairs = rows.reshape(batch, 2, -1, width)
    return m.l(pairs.reshape(2 * batch, pairs.shape[2], width))


def test_a_size_that_a_number_divides_without_a_remainder(pieces):
    module = Of(in_pairs).double()
    compiled = copy.deepcopy(module)
    compiled.compile(backend=compile_backend.lowtide)
    for batch in (2, 3, 5):
        arguments = x(2 * batch, 6, 4).double(), batch
        assert_same(step(compiled, arguments), step(module, arguments))
    assert [piece.fallback_reason for piece in pieces] == [None] * 2


def test_a_view_of_as_many_elements_as_a_number():
    """The graph had sizes of which it knew the product alone, and its lowering took that for a mistake of its own."""
    module = Of(lambda m, a: m.l(a.view(12)[:4])).double()
    wrapped = ORTModule(copy.deepcopy(module))
    for shape in ((3, 4), (2, 6), (3, 4), (12, 1)):
        given = x(*shape).double()
        assert_same(step(wrapped, (given,)), step(module, (given,)))
        assert wrapped.fallback_reason is None


def test_choices_of_a_text_beside_those_of_an_image():
    """As in VisualBERT: both have their choices in the batch, and only the batch of one is free at first."""

    def forward(m, words, image, kinds):
        image = m.l(image.flatten(0, 1)) + m.kinds(kinds.view(-1, kinds.size(-1)))
        return torch.cat([m.words(words.view(-1, words.size(-1))), image], 1)

    module = Of(forward, words=torch.nn.Embedding(9, 4), kinds=torch.nn.Embedding(2, 4)).double()
    wrapped = ORTModule(copy.deepcopy(module))
    for batch, choices in ((6, 4), (5, 4), (5, 3), (4, 4)):
        words = torch.arange(batch * choices * 7).view(batch, choices, 7) % 9
        call = (words, torch.randn(batch, choices, 5, 4, dtype=torch.float64), words[..., :5] % 2)
        assert_same(step(wrapped, call), step(module, call))
        assert wrapped.fallback_reason is None
