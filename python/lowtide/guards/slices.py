"""Slices while forward is traced."""

import torch


def ask_for_ends(index):
    """Of tensor[index]: whether each end of a slice counts from the front or from the back, which becomes a guard. Of
    one that could be either, such as `offset - length`, the exporter would make a slice as long as data say."""
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, slice):
            for end in (part.start, part.stop):
                if isinstance(end, torch.SymInt) and end.node.has_hint():
                    bool(end >= 0)
