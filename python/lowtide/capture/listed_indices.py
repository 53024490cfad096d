"""`marks[rows, columns] = True` where rows and columns are lists of single numbers (`zip(*places)`): PyTorch makes a
tensor of such a list by reading each number in it, which a tensor of the exporter's does not have."""

import torch

_get, _set = torch.Tensor.__getitem__, torch.Tensor.__setitem__


def get(tensor, index):
    """Tensor.__getitem__."""
    return _get(tensor, _stacked(index))


def put(tensor, index, value):
    """Tensor.__setitem__."""
    return _set(tensor, _stacked(index), value)


def _stacked(index):
    if not isinstance(index, tuple):
        return index
    return tuple(torch.stack(tuple(part)) if _is_list_of_numbers(part) else part for part in index)


def _is_list_of_numbers(part):
    # Of truth values PyTorch makes a mask; theirs is another index.
    return isinstance(part, (list, tuple)) and len(part) > 0 and all(map(_is_whole_number, part))


def _is_whole_number(item):
    return isinstance(item, torch.Tensor) and item.dim() == 0 and item.dtype is torch.int64
