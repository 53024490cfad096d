"""`keep_outputs`: which parts of what forward returns a caller wants, named by paths.

"loss" is an attribute, a key or a field of the output, 0 a position in it, "past_key_values.0" a part of a part.
"""

import dataclasses
from collections.abc import Mapping

import torch
import torch.utils._pytree as pytree

from lowtide.errors import InvalidArgument

from . import trees


def parse_keep_outputs(keep):
    """The paths that a user wrote, as texts; None for all outputs. InvalidArgument with the expected form."""
    if keep is None:
        return None
    paths = (keep,) if isinstance(keep, str | int) else keep
    if not isinstance(paths, tuple | list) or not paths:
        raise InvalidArgument(f'keep_outputs is {keep!r}, expected paths into the output: ("loss", "hidden.0", 1)')
    for path in paths:
        is_path = isinstance(path, str) or (isinstance(path, int) and not isinstance(path, bool))
        if not is_path or not all(str(path).split(".")):
            raise InvalidArgument(
                f'keep_outputs has {path!r}, expected a path into the output: a name, a position, or "name.name"'
            )
    return tuple(dict.fromkeys(str(path) for path in paths))


def keep_only(output, paths):
    """The output with None in the place of each part that no path leads to: the largest such parts, so that of a tuple
    of which nothing is kept None remains. InvalidArgument names the parts that there are where a path leads nowhere."""
    return _pruned(output, {path: path for path in paths}, "")


def _pruned(tree, wanted, place):
    """`wanted`: {rest of a path from here: the whole path}, "" for this very part. `place`: the path to here."""
    if "" in wanted:
        _pruned(tree, {rest: path for rest, path in wanted.items() if rest}, place)  # they must lead somewhere too
        return tree
    if not wanted:
        return None
    node = trees.one_level_of_output(tree)
    parts = [] if node is None else _names(tree, node)
    children, taken = [], set()
    for child, names in parts:
        inner = {}
        for rest, path in wanted.items():
            for name in names:
                if rest == name or rest.startswith(f"{name}."):
                    inner.setdefault(rest[len(name) + 1 :], path)
                    taken.add(rest)
        children.append(_pruned(child, inner, f"{place}.{names[0]}" if place else names[0]))
    if lost := [path for rest, path in wanted.items() if rest not in taken]:
        there = ", ".join(f"'{names[0]}'" for _, names in parts)
        where = f"'{place}' of the output" if place else "the output of forward"
        kind = "Tensor" if isinstance(tree, torch.Tensor) else type(tree).__name__
        what = f"has {there}" if there else f"is a {kind}, which has no parts"
        raise InvalidArgument(f"keep_outputs has '{lost[0]}', but {where} {what}")
    return trees.rebuild_level(node, children)


def _names(tree, node):
    """[(child, what paths may call it)] of a node: the first name is the one that messages use."""
    children, context = node
    positions = [str(index) for index in range(len(children))]
    if isinstance(context, trees.Opened):
        names = [[str(key)] for key in context.keys]
    elif isinstance(tree, Mapping) and len(tree) == len(children):
        names = [[str(key)] for key in tree]
        if dataclasses.is_dataclass(tree):  # transformers' ModelOutput takes positions too
            names = [[*known, index] for known, index in zip(names, positions, strict=True)]
    elif pytree.is_namedtuple_instance(tree):
        names = [[field, index] for field, index in zip(tree._fields, positions, strict=True)]
    else:
        names = [[index] for index in positions]
    return list(zip(children, names, strict=True))
