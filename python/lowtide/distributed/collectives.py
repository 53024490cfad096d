"""What the collective steps of a plan do: calls of torch.distributed on views of the engine's memory."""

import torch.distributed as dist

# What a process sends at a time: libraries have buffers for what travels, which no plan counts (gloo: up to three for
# what all send).
_SLICE_BYTES = 1 << 20

# Before PyTorch 2.13 they have other names.
_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_gather(whole, part, group):
    """`whole`: the `part` of all, one after another."""
    slices = _slices(part)
    if len(slices) == 1:
        _gather_single(whole, part, group=group)
        return
    parts, own = whole.view(group.size(), -1), part.view(-1)
    for begin, end in slices:
        dist.all_gather([each[begin:end] for each in parts], own[begin:end], group=group)


def reduce_scatter(part, whole, group):
    """`part`: this process's of the sum of `whole` of all."""
    slices = _slices(part)
    if len(slices) == 1:
        _scatter_single(part, whole, group=group)
        return
    parts, own = whole.view(group.size(), -1), part.view(-1)
    for begin, end in slices:
        _scatter_single(own[begin:end], parts[:, begin:end].reshape(-1), group=group)


def _slices(part):
    """(begin, end) of its elements."""
    step = _SLICE_BYTES // part.element_size()
    return [(begin, min(begin + step, part.numel())) for begin in range(0, max(part.numel(), 1), step)]


class Collectives:
    """Of one graph."""

    def __init__(self, groups):
        """`groups`: ProcessGroups, by the numbers that the graph gives them."""
        self._groups = groups
        self._run = {"AllGather": self._all_gather, "ReduceScatter": self._reduce_scatter}

    def find(self, target):
        """A function of attributes, inputs and outputs; None for the target of another call."""
        return self._run.get(target)

    def _all_gather(self, attrs, inputs, outputs):
        all_gather(outputs[0], inputs[0], self._groups[attrs["group"]])

    def _reduce_scatter(self, attrs, inputs, outputs):
        reduce_scatter(outputs[0], inputs[0], self._groups[attrs["group"]])
        outputs[0].div_(attrs["ranks"])
