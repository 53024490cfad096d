"""What the collective steps of a plan do: calls of torch.distributed on views of the engine's memory."""

import torch
import torch.distributed as dist

# What a process sends at a time: libraries have buffers for what travels, which no plan counts (gloo: up to three for
# what all send).
_SLICE_BYTES = 1 << 18

# Before PyTorch 2.13 they have other names.
_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_gather(whole, part, group):
    """`whole`: the `part` of all, one after another."""
    begin_all_gather(whole, part, group)()


def begin_all_gather(whole, part, group):
    """A function that waits until the gather that this begins has ended."""
    slices = _slices(part)
    if len(slices) == 1:
        return _waits_for([_gather_single(whole, part, group=group, async_op=True)])
    parts, own = whole.view(group.size(), -1), part.view(-1)
    return _waits_for(
        [
            dist.all_gather([each[begin:end] for each in parts], own[begin:end], group=group, async_op=True)
            for begin, end in slices
        ]
    )


def _waits_for(works):
    def wait():
        """For all of them, whatever is raised meanwhile: they write into memory of the engine's."""
        raised = None
        while works:
            try:
                while works:
                    works[-1].wait()
                    works.pop()
            except Exception as error:
                raised = error
                works.pop()
            except BaseException as error:  # interrupted
                raised = error
        if raised is not None:
            raise raised

    return wait


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


def redistribute(result, tensor, kind, axis, group):
    """`result`: what `kind` of Redistribute (src/opset/ops.def) makes of `tensor`."""
    ranks = group.size()
    if kind == "sum":
        dist.all_reduce(result.copy_(tensor), group=group)
    elif kind == "share":
        torch.div(tensor, ranks, out=result)
    elif kind == "part":
        result.copy_(tensor.chunk(ranks, axis)[group.rank()])
    elif kind == "scatter":
        whole = torch.stack(tensor.chunk(ranks, axis))
        reduce_scatter(result, whole.view(-1, *result.shape[1:]) if result.dim() else whole, group)
    elif kind == "gather":
        parts = tensor.new_empty(ranks, *tensor.shape)
        all_gather(parts.view(-1, *tensor.shape[1:]), tensor, group)
        torch.cat(parts.unbind(), axis, out=result)
    else:
        result.copy_(tensor)


class Collectives:
    """Of one graph."""

    def __init__(self, groups):
        """`groups`: Processes, by the numbers that the graph gives them."""
        self._groups = groups

    def run(self, target, attrs, inputs, outputs):
        """Whether the target is that of a collective that steps wait for: then it has run."""
        if target == "Redistribute":
            group = self._groups[attrs["group"]].dividing
            redistribute(outputs[0], inputs[0], attrs["kind"], attrs["axis"], group)
            return True
        if target != "ReduceScatter":
            return False
        group = self._groups[attrs["group"]]
        reduce_scatter(outputs[0], inputs[0], group.dividing)
        if group.alike is not None:
            dist.all_reduce(outputs[0], group=group.alike)
        outputs[0].div_(group.count())
        return True

    def begin(self, target, attrs, inputs, outputs):
        """A function that waits until the gather has ended."""
        assert target == "AllGather", target
        return begin_all_gather(outputs[0], inputs[0], self._groups[attrs["group"]].dividing)
