"""Trees of arguments and outputs: the one flatten and the one unflatten, on torch.utils._pytree.

What PyTorch registers (list, tuple, namedtuple, dict, OrderedDict, …), what a user or a library registers (ModelOutput
of transformers), any other Mapping, and dataclasses are nodes. Whatever else is a leaf.
"""

import copy
import dataclasses
import weakref
from collections import OrderedDict, UserDict
from collections.abc import Mapping

import torch
import torch.utils._pytree as pytree

from lowtide.guards.sameness import attributes_of, is_plain_object, put_attribute
from lowtide.guards.values import is_plain


@dataclasses.dataclass(frozen=True)
class Opened:
    """A node that PyTorch does not know: a Mapping, a dataclass, or in an output a key-value cache or a distribution.
    `empty`: one of its class without its items, or None for a Mapping that can only be made from a dict."""

    type: type
    keys: tuple
    empty: object = dataclasses.field(compare=False)

    def rebuild(self, children):
        if self.empty is None:
            return self.type(dict(zip(self.keys, children, strict=True)))
        made = copy.copy(self.empty)
        if isinstance(made, Mapping):
            for key, child in zip(self.keys, children, strict=True):
                made[key] = child
        else:
            for key, child in zip(self.keys, children, strict=True):
                object.__setattr__(made, key, child)
        return made


@dataclasses.dataclass(frozen=True)
class OpenedObject(Opened):
    """An object of a class of Python code, whose attributes are all that there is of it."""

    classes: tuple  # (name, value) of the attributes that are classes
    back: tuple  # (key of a child, its attribute that is a weak reference to the object)

    def rebuild(self, children):
        made = self.type.__new__(self.type)
        parts = {**dict(self.classes), **dict(zip(self.keys, children, strict=True))}
        for key, value in parts.items():
            put_attribute(made, key, value)
        for key, name in self.back:
            vars(parts[key])[name] = weakref.ref(made)
        return made


@dataclasses.dataclass(frozen=True)
class OpenedSize(Opened):
    """A torch.Size, of which PyTorch's own tree makes a tuple."""

    def rebuild(self, children):
        try:
            return torch.Size(children)
        except TypeError:  # of what stands for numbers
            return tuple(children)


@dataclasses.dataclass(frozen=True)
class Structure:
    """All of a tree but its leaves; equal for trees of the same classes, keys and sizes."""

    spec: pytree.TreeSpec
    opened: tuple = ()  # (index of PyTorch's leaf, Opened, Structure of its children)


def flatten(tree, open_node=None, is_leaf=None):
    """(leaves, Structure), depth first. `open_node`: what opens nodes that PyTorch does not know; `is_leaf`: whether
    one is not opened at all."""
    open_node = open_node or _open_argument
    leaves, spec = pytree.tree_flatten(
        tree, is_leaf=lambda part: type(part) is torch.Size or is_leaf is not None and is_leaf(part)
    )
    others = [(index, leaf) for index, leaf in enumerate(leaves) if is_leaf is None or not is_leaf(leaf)]
    nodes = [(index, node) for index, leaf in others if (node := open_node(leaf)) is not None]
    if not nodes:
        return leaves, Structure(spec)
    flat, opened, nodes = [], [], dict(nodes)
    for index, leaf in enumerate(leaves):
        if index not in nodes:
            flat.append(leaf)
            continue
        node, children = nodes[index]
        inner, structure = flatten(children, open_node, is_leaf)
        flat.extend(inner)
        opened.append((index, node, structure))
    return flat, Structure(spec, tuple(opened))


def flatten_output(tree, is_leaf=None):
    """`flatten` of what forward returns: a transformers model returns its key-value cache, a policy a distribution."""
    return flatten(tree, lambda leaf: _open_node(leaf) or _open_object(leaf), is_leaf)


def unflatten(leaves, structure):
    if not structure.opened:
        return pytree.tree_unflatten(leaves, structure.spec)
    return _unflatten(iter(leaves), structure)


def _unflatten(rest, structure):
    opened = {index: (node, inner) for index, node, inner in structure.opened}
    leaves = []
    for index in range(structure.spec.num_leaves):
        if index in opened:
            node, inner = opened[index]
            leaves.append(node.rebuild(_unflatten(rest, inner)))
        else:
            leaves.append(next(rest))
    return pytree.tree_unflatten(leaves, structure.spec)


def builder(structure):
    """`unflatten` for many trees of this structure whose leaves are tensors: a function of the leaves.

    A dataclass that is an OrderedDict too (transformers' ModelOutput) asks for its fields again and again while it is
    made. Where one that is put together from its parts is the same, that is what is made.
    """
    spec = structure.spec
    made_by_class = isinstance(spec.type, type) and issubclass(spec.type, OrderedDict)
    if structure.opened or not made_by_class or not dataclasses.is_dataclass(spec.type):
        return lambda leaves: unflatten(leaves, structure)
    samples = [torch.empty(0) for _ in range(spec.num_leaves)]
    model = unflatten(samples, structure)
    keys = tuple(OrderedDict.keys(model))
    attributes = {**vars(model)}

    def build(leaves):
        made = OrderedDict.__new__(spec.type)
        fields = vars(made)
        fields.update(attributes)
        for key, leaf in zip(keys, leaves, strict=True):
            OrderedDict.__setitem__(made, key, leaf)
            fields[key] = leaf
        return made

    same = len(keys) == len(samples) and _parts(build(samples)) == _parts(model)
    return build if same else lambda leaves: unflatten(leaves, structure)


def _parts(instance):
    """What an OrderedDict with attributes is made of, tensors by identity."""
    return [(key, id(value)) for key, value in (*OrderedDict.items(instance), *vars(instance).items())]


def _open_node(leaf):
    """(Opened, list of children) of a Mapping or a dataclass, else None."""
    if type(leaf) is torch.Size:
        return OpenedSize(torch.Size, tuple(range(len(leaf))), None), list(leaf)
    if isinstance(leaf, Mapping):
        keys = tuple(leaf.keys())
        return Opened(type(leaf), keys, _without_items(leaf)), [leaf[key] for key in keys]
    if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
        keys = tuple(field.name for field in dataclasses.fields(leaf) if hasattr(leaf, field.name))
        return Opened(type(leaf), keys, _without_fields(leaf, keys)), [getattr(leaf, key) for key in keys]
    return None


def _open_object(leaf):
    """The same of a transformers cache, of a layer of one, or of a distribution: what they hold lies in attributes."""
    is_cache = any(cls.__module__ == "transformers.cache_utils" for cls in type(leaf).__mro__)
    if isinstance(leaf, type) or not (is_cache or isinstance(leaf, torch.distributions.Distribution)):
        return None
    parts = {key: value for key, value in vars(leaf).items() if not isinstance(value, type)}
    return Opened(type(leaf), tuple(parts), _without_fields(leaf, parts)), list(parts.values())


_MOST_ENTRIES = 256  # of an object with all that is in it


def _open_argument(leaf):
    return _open_node(leaf) or _open_plain_object(leaf)


def is_opened(value):
    """Whether an argument is a node that PyTorch does not know."""
    return value is not None and not isinstance(value, torch.Tensor) and _open_argument(value) is not None


def _open_plain_object(leaf):
    """The same of an argument that has nothing but attributes, with plain values and tensors at the end of each way."""
    if not is_plain_object(leaf):
        return None
    ends = []
    if not _is_tree(leaf, ends, ()) or callable(leaf) and not any(isinstance(end, torch.Tensor) for end in ends):
        return None
    attributes = attributes_of(leaf)
    classes = tuple((key, value) for key, value in attributes.items() if isinstance(value, type))
    parts = {key: value for key, value in attributes.items() if not isinstance(value, type)}
    back = tuple(
        (key, name)
        for key, value in parts.items()
        for name, other in getattr(value, "__dict__", {}).items()
        if type(other) is weakref.ref and other() is leaf
    )
    return OpenedObject(type(leaf), tuple(parts), None, classes, back), list(parts.values())


def _is_tree(value, ends, above):
    """Whether an object's attributes lead back to nothing above them, and to few things; `ends` gets those."""
    if isinstance(value, torch.Tensor | type) or is_plain(value):
        ends.append(value)
        return len(ends) <= _MOST_ENTRIES
    if id(value) in above:
        return False
    if type(value) in (list, tuple):
        children = value
    elif type(value) is dict:
        children = value.values()
    elif (node := _open_node(value)) is not None:
        children = node[1]
    elif is_plain_object(value):
        children = attributes_of(value).values()
    else:
        return False
    return all(_is_tree(child, ends, (*above, id(value))) for child in children)


def one_level(value):
    """(children, context) of a node, contexts of equal trees being equal; None for a leaf."""
    root = id(value)  # PyTorch's function is in a cycle, which shall not hold the value
    children, spec = pytree.tree_flatten(value, is_leaf=lambda part: id(part) != root or type(part) is torch.Size)
    if not spec.is_leaf():
        return children, spec
    node = _open_argument(value)
    return node and (node[1], node[0])


def one_level_of_output(value):
    """`one_level` of what forward returns, whose key-value caches and distributions are nodes."""
    return one_level(value) or _open_object_level(value)


def _open_object_level(value):
    node = _open_object(value)
    return node and (node[1], node[0])


def rebuild_level(node, children):
    """The value of one_level's node with these children in place of its own."""
    _, context = node
    return context.rebuild(children) if isinstance(context, Opened) else pytree.tree_unflatten(children, context)


def _without_items(mapping):
    # A copy of any other class may share its items with the user's own.
    if not isinstance(mapping, dict | UserDict):
        return None
    empty = copy.copy(mapping)
    empty.clear()
    items = {id(item) for item in mapping.values()}
    for name, value in getattr(
        empty, "__dict__", {}
    ).items():  # transformers' outputs have their items as attributes too
        if value is not None and id(value) in items:
            empty.__dict__[name] = None
    return empty


def _without_fields(instance, keys):
    empty = copy.copy(instance)
    for key in keys:
        object.__setattr__(empty, key, None)
    return empty


def flatten_with_keys(tree, prefix=()):
    """[(keys and positions from the root, leaf)], in the order of `flatten`."""
    if (children := named_children(tree)) is None:
        return [(prefix, tree)]
    return [pair for key, child in children for pair in flatten_with_keys(child, (*prefix, key))]


def at(tree, path):
    """The leaf at the end of a path of `flatten_with_keys`."""
    for key in path:
        tree = dict(named_children(tree))[key]
    return tree


def named_children(tree):
    """[(key or position, child)] of a node, None for a leaf."""
    if (node := one_level(tree)) is None:
        return None
    children, context = node
    if isinstance(context, Opened):
        keys = context.keys
    else:
        keys = list(tree.keys()) if isinstance(tree, Mapping) and len(tree) == len(children) else range(len(children))
    return list(zip(keys, children, strict=True))


def how_to_register(cls):
    name = f"{cls.__module__}.{cls.__qualname__}"
    return (
        f"a {name}, which is neither a tensor nor a plain value nor a known container; register its class: "
        f"torch.utils._pytree.register_pytree_node({cls.__name__}, flatten, unflatten), or make it a dataclass"
    )
