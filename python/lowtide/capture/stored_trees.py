"""Structures of outputs and arguments as JSON and back.

Nothing is executed while reading: classes are looked up by name among those that can be imported.
"""

import dataclasses
import importlib
from collections import UserDict

import torch.utils._pytree as pytree

from lowtide.guards.values import DTYPES

from . import trees

DTYPE_OF = {name: dtype for dtype, name in DTYPES.items()}


class NotStorable(Exception):
    """With the reason."""


def walk(owner, path):
    for name in filter(None, path):
        owner = getattr(owner, name)
    return owner


def structure_to_json(structure):
    opened = []
    for index, node, inner in structure.opened:
        opened.append([index, _opened_to_json(node), structure_to_json(inner)])
    return [spec_to_json(structure.spec), opened]


def structure_from_json(told):
    spec, opened = told
    return trees.Structure(
        spec_from_json(spec),
        tuple((index, _opened_from_json(node), structure_from_json(inner)) for index, node, inner in opened),
    )


def _opened_to_json(node):
    """A Mapping or dataclass that PyTorch does not know; `empty` must be what its class alone makes."""
    kind = "of dict"
    if dataclasses.is_dataclass(node.type):
        kind = "dataclass"
        if any(value is not None for value in vars(node.empty).values()):
            raise NotStorable(f"the output holds a {node.type.__qualname__} with more than its fields")
    elif node.empty is not None:
        kind = "empty"
        more = set(vars(node.empty)) - {"data"} if hasattr(node.empty, "__dict__") else ()
        if more or not isinstance(node.empty, dict | UserDict):
            raise NotStorable(f"the output holds a {node.type.__qualname__} with more than its items")
    return [class_name(node.type), kind, _context_to_json(node.keys)]


def _opened_from_json(told):
    name, kind, keys = told
    cls, keys, empty = class_of(name), _context_from_json(keys), None
    if kind == "dataclass":
        empty = object.__new__(cls)
        for key in keys:
            object.__setattr__(empty, key, None)
    elif kind == "empty":
        empty = cls()
    return trees.Opened(cls, keys, empty)


def spec_to_json(spec):
    if spec.type is None:
        return None
    children = [spec_to_json(child) for child in spec.children()]
    return [class_name(spec.type), _context_to_json(spec.context), children]


def spec_from_json(told):
    if told is None:
        return _LEAF
    name, context, children = told
    kind = _find(name)
    if kind not in pytree.SUPPORTED_NODES:
        raise ValueError(f"PyTorch's trees do not know {name}")
    return pytree.TreeSpec(kind, _context_from_json(context), [spec_from_json(child) for child in children])


_LEAF = pytree.tree_flatten(0)[1]


def class_name(cls, what="the output holds a"):
    """Its module and qualified name."""
    if (
        "<locals>" in cls.__qualname__
        or cls.__module__ == "__main__"
        and not hasattr(importlib.import_module("__main__"), cls.__qualname__.split(".")[0])
    ):
        raise NotStorable(f"{what} {cls.__qualname__}, which no later process can find by its name")
    return [cls.__module__, cls.__qualname__]


def _find(name):
    """By its module and qualified name."""
    module, qualname = name
    return walk(importlib.import_module(module), qualname.split("."))


def class_of(name):
    found = _find(name)
    if not isinstance(found, type):
        raise ValueError(f"{name} is no class")
    return found


def _context_to_json(context):
    """What PyTorch's trees keep of a node: keys, a class (of a namedtuple), a limit (of a deque)."""
    if isinstance(context, list | tuple):
        return ["list" if isinstance(context, list) else "tuple", [_context_to_json(item) for item in context]]
    if isinstance(context, type):
        return ["class", class_name(context)]
    if context is None or type(context) in (bool, int, float, str):
        return ["plain", context]
    raise NotStorable(f"the output is made with a {type(context).__qualname__}")


def _context_from_json(told):
    kind, value = told
    if kind in ("list", "tuple"):
        items = [_context_from_json(item) for item in value]
        return items if kind == "list" else tuple(items)
    return class_of(value) if kind == "class" else value
