"""Operators of PyTorch and of users' libraries, by the names that a graph has for them."""

import operator

import torch


def overload_of(target):
    """Of "namespace::name.overload". ValueError where no library has it."""
    namespace, _, rest = target.partition("::")
    name, _, overload = rest.partition(".")
    try:
        found = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    except (AttributeError, RuntimeError):
        found = None
    if not isinstance(found, torch._ops.OpOverload):
        raise ValueError(f"PyTorch knows no operator {target}")
    return found


_COLLECTIVES = "_c10d_functional"  # what functional collectives of torch.distributed are in a graph
_POINT_TO_POINT = ("isend", "irecv", "batch_p2p_ops")


def is_collective(overload):
    """Whether processes run it together. Its results are there once they are waited for, which the call does itself."""
    return isinstance(overload, torch._ops.OpOverload) and overload.namespace == _COLLECTIVES


def waits_for_collective(node):
    """Of a graph: a wait for what a node of the same graph does."""
    if not is_collective(node.target) or node.target.name() != f"{_COLLECTIVES}::wait_tensor":
        return False
    awaited = node.args[0]
    while isinstance(awaited, torch.fx.Node) and awaited.target is operator.getitem:
        awaited = awaited.args[0]
    return isinstance(awaited, torch.fx.Node) and is_collective(awaited.target)


def is_point_to_point(overload):
    """A message whose other end is another call: whoever waited for it at once might wait forever."""
    return is_collective(overload) and overload.name().partition("::")[2] in _POINT_TO_POINT


def wait_for(results):
    """What a collective returned, once it is there."""
    wait = getattr(torch.ops, _COLLECTIVES).wait_tensor
    return [wait(result) for result in results] if isinstance(results, list | tuple) else wait(results)
