"""What the collective steps of a plan do: calls of torch.distributed on views of the engine's memory."""

import torch.distributed as dist


def all_gather(whole, part, group):
    """`whole`: the `part` of all, one after another."""
    run = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor  # before 2.13
    run(whole, part, group=group)


def reduce_scatter(part, whole, group):
    """`part`: this process's of the sum of `whole` of all."""
    run = dist.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor
    run(part, whole, group=group)


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
