"""Who was running where forward read numbers out of a tensor, could not be traced, or where Dynamo ended a graph."""

import torch

_INDICES = (torch.int32, torch.int64)


def readers(frames):
    """`frames`: innermost first. Modules inside of the traced one that have an integer tensor of two dims there: it may
    be a table of sizes (tables.py). Outermost first."""
    found = {}  # module → whether it has
    for frame in frames:
        if _begins_forward(frame):
            return tuple(module for module, has_table in list(found.items())[-2::-1] if has_table)
        module = frame.f_locals.get("self")
        if isinstance(module, torch.nn.Module):
            found[module] = found.pop(module, False) or any(map(_may_be_table, frame.f_locals.values()))
    return ()


def running(frames, root):
    """`frames`: innermost first. Modules inside of `root`, outermost first."""
    found = {}
    for frame in frames:
        module = frame.f_locals.get("self")
        if module is root:
            return tuple(found)[::-1]
        if isinstance(module, torch.nn.Module):
            found[module] = found.pop(module, None)
    return ()


def outwards(frame):
    while frame is not None:
        yield frame
        frame = frame.f_back


def _begins_forward(frame):
    return frame.f_code.co_name == "call" and frame.f_globals.get("__name__") == f"{__package__}.observe"


def _may_be_table(value):
    return isinstance(value, torch.Tensor) and value.dim() == 2 and value.dtype in _INDICES
