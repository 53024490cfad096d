"""The tensors that a module is exported with: their sizes, and which of these are free."""

import torch


def repeats_samples(call, facts):
    """Whether the export's example has other sizes than the call."""
    return example_sizes(call, facts) != [list(size) for size in call.sizes()]


def is_dynamic(dim, tensor, facts):
    """Images and the like first get a free batch only: free heights and widths make exports and plans several times
    slower, and most training never changes them. A call that does teaches it, and who wants formulas asks for it.

    A 1 that is exported as itself stays 1. The model has asked about it, perhaps for one input only, and the exporter
    would broadcast the others, free sizes then, against it without a guard."""
    if dim in facts.fixed:
        return False
    if facts.exact and tensor.shape[dim[1]] == 1 and dim not in facts.moving:
        return False
    if tensor.shape[dim[1]] == 0:
        return False  # as a free size it would be taken for another one
    return facts.free or dim in facts.moving or tensor.dim() < 4 or dim[1] == 0


def example_sizes(call, facts):
    """A batch of one, or equal to another size of the same input, would be taken for a rule: export another one."""
    sizes = [list(tensor.shape) for tensor in call.tensors]
    if facts.exact:
        return sizes
    batches = {size[0] for size in sizes if size}
    others = {value for size in sizes for value in size[1:]}
    replaced = {}
    for batch in batches:
        if batch == 1 or (batch in others and batch > 0):
            fresh = max(2, batch)
            while fresh in others or fresh in batches or fresh in replaced.values():
                fresh += 1
            replaced[batch] = fresh
    for size in sizes:
        if size:
            size[0] = replaced.get(size[0], size[0])
    return sizes


def example(tensor, sizes):
    order = sorted(range(tensor.dim()), key=lambda dim: (-tensor.stride(dim), dim))
    example = torch.empty_permuted(sizes, order, dtype=tensor.dtype) if sizes else torch.empty([], dtype=tensor.dtype)
    return example.requires_grad_(tensor.requires_grad)
