"""Where a module runs in pieces, graphs of whole numbers alone are none: PyTorch computes them between the pieces, and
other sizes of theirs are no export."""

import copy

import torch
from modules import assert_same, step

from lowtide.ortmodule import ORTModule


class Placed(torch.nn.Module):
    """Counts where each row of tokens begins, as models of images and text do."""

    def __init__(self):
        super().__init__()
        self.embedding, self.l = torch.nn.Embedding(9, 4), torch.nn.Linear(4, 4)

    def forward(self, ids):
        places = (100 * ids).cumsum(1).flatten().tolist()  # more than a graph knows by heart
        torch._dynamo.graph_break()
        most = len(set(places))
        return self.l(self.embedding(ids)) * most


def ids(rows, columns):
    return torch.randint(9, (rows, columns), generator=torch.Generator().manual_seed(columns))


def test_one_piece_is_left(with_pieces):
    module = Placed().double()
    wrapped = ORTModule(copy.deepcopy(module))
    for columns in (5, 7, 8, 6):
        assert_same(step(wrapped, (ids(3, columns),)), step(module, (ids(3, columns),)))
        assert wrapped.fallback_reason.startswith("1 of 1 pieces in the engine")


def test_a_module_of_whole_numbers_keeps_its_pieces(with_pieces):
    class Sorted(torch.nn.Module):
        def forward(self, ids):
            return ids + 1 if ids.sum() > ids.numel() * 4 and ids.sort().values[0, 0] > 9 else ids * 2

    module = Sorted()
    wrapped = ORTModule(copy.deepcopy(module))
    for columns in (5, 7):
        torch.testing.assert_close(wrapped(ids(3, columns)), module(ids(3, columns)))
        assert wrapped.fallback_reason is None or " pieces in the engine" in wrapped.fallback_reason
