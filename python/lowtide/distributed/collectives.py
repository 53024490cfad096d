"""What the collective steps of a plan do: calls of torch.distributed on views of the engine's memory.

gloo's own collectives copy what they are given and what they receive, which no plan counts, and reduce by sending all
of it around. Over gloo processes therefore send each other parts, right out of the plan's memory and into it; what is
received to be added up has its room in the plan, the last output of a step.
"""

import torch
import torch.distributed as dist

_TAG = 0x10D7  # of these messages

# Before PyTorch 2.13 they have other names.
_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_gather(whole, part, group):
    """`whole`: the `part` of all, one after another."""
    begin_all_gather(whole, part, group)()


def begin_all_gather(whole, part, group):
    """A function that waits until the gather that this begins has ended."""
    if not _is_gloo(group, part):
        return _waits_for([_gather_single(whole, part, group=group, async_op=True)])
    parts, own = whole.view(group.size(), -1), part.view(-1)
    wait = _begin_exchange(dict.fromkeys(_others(group), own), parts, group)
    parts[group.rank()].copy_(own)
    return wait


def reduce_scatter(part, whole, room, group):
    """`part`: this process's of the sum of `whole` of all. `room`: for as many elements of each other process as shall
    travel at a time."""
    if group.size() == 1 or not _is_gloo(group, whole):
        begin_reduce_scatter(part, whole, room, group)()
        return
    parts, result, at_once = whole.view(group.size(), -1), part.view(-1), room.numel() // (group.size() - 1)
    for begin in range(0, part.numel(), at_once):
        end = min(begin + at_once, part.numel())
        _begin_sum(result[begin:end], parts[:, begin:end], room, group)()


def begin_reduce_scatter(part, whole, room, group):
    """A function that waits until the reduction that this begins has ended. `room`: for all that others send."""
    if group.size() == 1:
        part.copy_(whole)
        return lambda: None
    if not _is_gloo(group, whole):
        return _waits_for([_scatter_single(part, whole, group=group, async_op=True)])
    return _begin_sum(part.view(-1), whole.view(group.size(), -1), room, group)


def _begin_sum(result, parts, room, group):
    """A function that waits until `result` is the sum of what all processes have for this one. `parts`: by process."""
    peers = _others(group)
    received = dict(zip(peers, room.view(len(peers), -1)[:, : result.numel()], strict=True))
    wait = _begin_exchange({peer: parts[peer] for peer in peers}, received, group)

    def add_up():
        wait()
        own = parts[group.rank()].reshape(-1)
        for peer in sorted(received):
            own = torch.add(own, received[peer], out=result)

    return add_up


def _is_gloo(group, tensor):
    return f"{tensor.device.type}:gloo" in dist.get_backend_config(group)


def _others(group):
    """Beginning behind this one, so that not all send to the first."""
    rank, size = group.rank(), group.size()
    return [(rank + distance) % size for distance in range(1, size)]


def _begin_exchange(sent, received, group):
    """A function that waits until each other process has been sent what `sent` has for it, and `received` has what it
    sends. By process, tensors without gaps."""
    others = [(peer, dist.get_global_rank(group, peer)) for peer in _others(group) if sent[peer].numel() > 0]
    works = [dist.irecv(received[peer], number, group=group, tag=_TAG) for peer, number in others]
    works += [dist.isend(sent[peer], number, group=group, tag=_TAG) for peer, number in others]
    return _waits_for(works)


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


def redistribute(result, tensor, room, kind, axis, group):
    """`result`: what `kind` of Redistribute (src/opset/ops.def) makes of `tensor`. `room`: of what is added up, or of
    parts that do not lie in `tensor` or `result` as they travel; then of both."""
    ranks = group.size()
    if kind == "sum":
        dist.all_reduce(result.copy_(tensor), group=group)
    elif kind == "share":
        torch.div(tensor, ranks, out=result)
    elif kind == "part":
        result.copy_(tensor.chunk(ranks, axis)[group.rank()])
    elif kind == "scatter":
        _scatter(result, tensor, room, axis, group)
    elif kind == "gather":
        _gather(result, tensor, room, axis, group)
    else:
        result.copy_(tensor)


def _scatter(result, tensor, room, axis, group):
    parts = tensor.chunk(group.size(), axis)
    if group.size() == 1:
        result.copy_(tensor)
    elif not _is_gloo(group, tensor):
        whole = torch.stack(parts)
        _scatter_single(result, whole.view(-1, *result.shape[1:]) if result.dim() else whole, group=group)
    else:
        rooms = room.view(-1, group.size() - 1, *result.shape)
        if len(rooms) > 1:  # parts do not lie in it as they travel
            places = iter(rooms[1])
            parts = [part if peer == group.rank() else next(places).copy_(part) for peer, part in enumerate(parts)]
        _begin_sum(result.view(-1), parts, rooms[0], group)()


def _gather(result, tensor, room, axis, group):
    parts, peers = result.chunk(group.size(), axis), _others(group)
    if not _is_gloo(group, tensor):
        gathered = tensor.new_empty(group.size(), *tensor.shape)
        all_gather(gathered.view(-1, *tensor.shape[1:]), tensor, group)
        torch.cat(gathered.unbind(), axis, out=result)
        return
    received = parts if room is None else dict(zip(peers, room.view(-1, *tensor.shape), strict=True))
    _begin_exchange(dict.fromkeys(peers, tensor), received, group)()
    for peer in [] if room is None else peers:
        parts[peer].copy_(received[peer])
    parts[group.rank()].copy_(tensor)


class Collectives:
    """Of one graph."""

    def __init__(self, groups):
        """`groups`: Processes, by the numbers that the graph gives them."""
        self._groups = groups

    def run(self, target, attrs, inputs, outputs):
        """Whether the target is that of a collective that steps wait for: then it has run."""
        if target not in ("Redistribute", "ReduceScatter"):
            return False
        group, (result, *room) = self._groups[attrs["group"]], outputs
        room = room[0] if room else None
        if target == "Redistribute":
            redistribute(result, inputs[0], room, attrs["kind"], attrs["axis"], group.dividing)
            return True
        reduce_scatter(result, inputs[0], room, group.dividing)
        _finish_mean(result, group)
        return True

    def begin(self, target, attrs, inputs, outputs):
        """A function that waits until the gather or reduction has ended."""
        group, (result, *room) = self._groups[attrs["group"]], outputs
        if target == "AllGather":
            return begin_all_gather(result, inputs[0], group.dividing)
        assert target == "ReduceScatter", target
        wait = begin_reduce_scatter(result, inputs[0], room[0] if room else None, group.dividing)

        def end():
            wait()
            _finish_mean(result, group)

        return end


def _finish_mean(part, group):
    """Of all processes, where `part` is the sum of those that divide parameters."""
    if group.alike is not None:
        dist.all_reduce(part, group=group.alike)
    part.div_(group.count())
