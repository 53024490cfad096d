"""Where slices begin and end, as the exporter took it.

It asks nothing about a size of 0: x[:, -n:] counts from the end whatever n, and x[:, :1] has one column. What follows
of that is a guard here, and positions that follow from sizes count from the start.
"""

import sys

import torch
from torch.fx.experimental import _config as symbolic_config
from torch.fx.experimental.symbolic_shapes import guard_or_false

aten = torch.ops.aten
_SLICES = (aten.slice.Tensor, aten.slice_scatter.default)
_NAMES = dict.fromkeys(_SLICES, ("start", "end")) | {
    aten.select.int: ("index",),
    aten.select_scatter.default: ("index",),
    aten.narrow.default: ("start",),
}


def positions_from_start(target, arguments, sizes):
    """Argument → position, of those that are no constants. `arguments`: by name, a tensor as its fake one."""
    if target not in _NAMES or arguments["self"].dim() == 0:
        return {}
    size = arguments["self"].shape[arguments.get("dim", 0)]
    found = {}
    with symbolic_config.patch(backed_size_oblivious=True):
        for name in _NAMES[target]:
            position = arguments.get(name)
            if position is None or not isinstance(position, torch.SymInt) and position == sys.maxsize:
                continue
            if not isinstance(position, torch.SymInt) and not isinstance(size, torch.SymInt):
                continue
            if isinstance(position, torch.SymInt):
                from_end = _is_negative(position)
                sizes.require(-position - 1 if from_end else position)
                position = position + size if from_end else position
                found[name] = torch.sym_max(position, 0) if target in _SLICES else position
                if target not in _SLICES:
                    sizes.require(position)
                    sizes.require(size - position - 1)
            elif position < 0:
                position = position + size
            if target in _SLICES:
                for distance in (position, size - position):
                    if guard_or_false(distance >= 0):
                        sizes.require(distance)
    return found


def _is_negative(position):
    if guard_or_false(position < 0):
        return True
    return not guard_or_false(position >= 0) and position.node.has_hint() and position.node.hint < 0
