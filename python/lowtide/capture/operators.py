"""Operators of PyTorch and of users' libraries, by the names that a graph has for them."""

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
