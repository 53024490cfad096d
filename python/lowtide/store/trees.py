"""Structures of outputs and arguments as JSON and back.

A file names classes, but brings none: they are looked up among PyTorch's containers and what the guards of the graph
hold, which is there already. Nothing is imported.
"""

import collections
import collections.abc
import dataclasses
import types

import torch
import torch.utils._pytree as pytree

from lowtide.capture import trees
from lowtide.guards.code import is_ours
from lowtide.guards.sameness import attributes_of
from lowtide.guards.values import DTYPES

DTYPE_OF = {name: dtype for dtype, name in DTYPES.items()}
_FACTORIES = (bool, dict, float, int, list, set, str, tuple)  # of a defaultdict


class NotStorable(Exception):
    """With the reason."""


class Classes:
    """Those that a file may name."""

    def __init__(self, guards):
        nodes = [node for node in pytree.SUPPORTED_NODES if node.__module__ in _CONTAINERS or is_ours(node.__module__)]
        held = [*guards.classes(), *nodes, *_FACTORIES, collections.UserDict, types.MappingProxyType]
        self._by_name = {(cls.__module__, cls.__qualname__): cls for cls in held}

    def name(self, cls, what="the output holds a"):
        if self._by_name.get(key := class_name(cls, what)) is not cls:
            raise NotStorable(f"{what} {cls.__qualname__}, which nothing that forward reads leads to")
        return key

    def find(self, name):
        module, qualname = name
        if (module, qualname) not in self._by_name:
            raise ValueError(f"{module}.{qualname} is not among the classes that forward reads")
        return self._by_name[module, qualname]


_CONTAINERS = ("builtins", "collections")


def class_name(cls, what="the output holds a"):
    """Its module and qualified name."""
    if "<locals>" in cls.__qualname__:
        raise NotStorable(f"{what} {cls.__qualname__}, which no later process can find by its name")
    return cls.__module__, cls.__qualname__


def plain_from_json(value):
    if value is not None and type(value) not in (bool, int, float, str):
        raise ValueError(f"expected a plain value, found a {type(value).__name__}")
    return value


def structure_to_json(structure, name=class_name):
    """`name`: from a class to what stands for it, as Classes.name."""
    opened = []
    for index, node, inner in structure.opened:
        opened.append([index, _opened_to_json(node, name), structure_to_json(inner, name)])
    return [spec_to_json(structure.spec, name), opened]


def structure_from_json(told, classes):
    spec, opened = told
    found = trees.Structure(
        spec_from_json(spec, classes),
        tuple(
            (index, _opened_from_json(node, classes), structure_from_json(inner, classes))
            for index, node, inner in opened
        ),
    )
    places = [index for index, _, _ in found.opened]
    if places != sorted(set(places)) or not set(places) <= set(range(found.spec.num_leaves)):
        raise ValueError(f"nodes at the places {places} of {found.spec.num_leaves}")
    return found


def _opened_to_json(node, name):
    """A Mapping or dataclass that PyTorch does not know; `empty` must be what its class alone makes."""
    if isinstance(node, trees.OpenedObject):
        raise NotStorable(f"an argument is a {node.type.__qualname__}")
    if isinstance(node, trees.OpenedSize):
        return [name(node.type), "size", _context_to_json(node.keys, name)]
    kind = "of dict"
    if dataclasses.is_dataclass(node.type):
        kind = "dataclass"
        if any(value is not None for value in attributes_of(node.empty).values()):
            raise NotStorable(f"the output holds a {node.type.__qualname__} with more than its fields")
    elif node.empty is not None:
        kind = "empty"
        more = set(vars(node.empty)) - {"data"} if hasattr(node.empty, "__dict__") else ()
        if more or not isinstance(node.empty, dict | collections.UserDict):
            raise NotStorable(f"the output holds a {node.type.__qualname__} with more than its items")
    return [name(node.type), kind, _context_to_json(node.keys, name)]


def _opened_from_json(told, classes):
    name, kind, keys = told
    cls, keys, empty = classes.find(name), _context_from_json(keys, classes), None
    if kind == "size":
        return trees.OpenedSize(torch.Size, keys, None)
    if kind == "dataclass":
        if not dataclasses.is_dataclass(cls) or not set(keys) <= {field.name for field in dataclasses.fields(cls)}:
            raise ValueError(f"{name} has no fields {keys}")
        empty = object.__new__(cls)
        for key in keys:
            object.__setattr__(empty, key, None)
    elif not issubclass(cls, collections.abc.Mapping):
        raise ValueError(f"{name} holds no items")
    elif kind == "empty":
        empty = cls()
    return trees.Opened(cls, tuple(keys), empty)


def spec_to_json(spec, name):
    if spec.type is None:
        return None
    children = [spec_to_json(child, name) for child in spec.children()]
    return [name(spec.type), _context_to_json(spec.context, name), children]


def spec_from_json(told, classes):
    if told is None:
        return _LEAF
    name, context, children = told
    kind = classes.find(name)
    if kind not in pytree.SUPPORTED_NODES:
        raise ValueError(f"PyTorch's trees do not know {name}")
    context = _context_from_json(context, classes)
    return pytree.TreeSpec(kind, context, [spec_from_json(child, classes) for child in children])


_LEAF = pytree.tree_flatten(0)[1]


def _context_to_json(context, name):
    """What PyTorch's trees keep of a node: keys, a class (of a namedtuple), a limit (of a deque)."""
    if isinstance(context, list | tuple):
        return ["list" if isinstance(context, list) else "tuple", [_context_to_json(item, name) for item in context]]
    if isinstance(context, type):
        return ["class", name(context)]
    if context is None or type(context) in (bool, int, float, str):
        return ["plain", context]
    raise NotStorable(f"the output is made with a {type(context).__qualname__}")


def _context_from_json(told, classes):
    kind, value = told
    if kind in ("list", "tuple"):
        items = [_context_from_json(item, classes) for item in value]
        return items if kind == "list" else tuple(items)
    return classes.find(value) if kind == "class" else plain_from_json(value)
