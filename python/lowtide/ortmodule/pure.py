"""Which calls out of the engine may run a second time in backward, for the memory optimizer."""

import torch

from lowtide.errors import InvalidArgument

_targets = set()


def declare_pure(*calls):
    """Says that these calls only compute: the same inputs give the same outputs, and nothing else changes.

    The memory optimizer then may recompute them in backward instead of keeping their results. A call is a
    torch.autograd.Function class, an op without a lowering (torch.ops.mylib.gate, with or without its overload), or the
    name of either as the plans show it ("mylib::gate.default"). Holds for graphs that are captured afterwards.
    """
    for call in calls:
        _targets.update(_names(call))


def pure_calls():
    return sorted(_targets)


def _names(call):
    if isinstance(call, str):
        return [call]
    if isinstance(call, torch._ops.OpOverload):
        return [_name(call)]
    if isinstance(call, torch._ops.OpOverloadPacket):
        return [_name(getattr(call, overload)) for overload in call.overloads()]
    if isinstance(call, type) and issubclass(call, torch.autograd.Function):
        return [f"{call.__module__}.{call.__qualname__}"]
    raise InvalidArgument(
        f"declare_pure takes a torch.autograd.Function class, an op of torch.ops or a name, found {call!r}"
    )


def _name(overload):
    return f"{overload.namespace}::{overload._opname}.{overload._overloadname}"
