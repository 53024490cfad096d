"""One call of a module: arguments flattened into tensors and plain values."""

import copy
import inspect
import itertools
import re

import torch

from lowtide._lowtide import CallSchema
from lowtide.errors import UnsupportedData, UnsupportedDevice
from lowtide.guards.held import HELD, told
from lowtide.guards.tables import TableOfSizes
from lowtide.guards.unread import Unread, is_unread
from lowtide.guards.values import DTYPES, PLAIN_TENSORS, array_key, is_array, is_plain

from . import trees

NUMBERS = {int: torch.int64, float: torch.float64}  # exactly these classes; 0-d tensors of these dtypes hold them


class Call:
    """`leaves` of (args, kwargs) in pytree order; `tensors` are those that are tensors."""

    def __init__(self, args, kwargs, forward=None, numbers=()):
        """With the module's `forward`, keyword arguments come in the order of its parameters. `numbers`: places of
        leaves that are an int, a float or a string of any value: the leaves of numbers are 0-d tensors."""
        self.args, self.kwargs = tuple(args), _in_order(kwargs, forward)
        self.leaves, self.structure = trees.flatten((self.args, self.kwargs))
        self.numbers = frozenset(numbers)
        strings = itertools.count()
        for place in sorted(self.numbers):
            leaf = self.leaves[place]
            is_string = type(leaf) is str
            self.leaves[place] = Unread(next(strings)) if is_string else torch.tensor(leaf, dtype=NUMBERS[type(leaf)])
        self.tensors = [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]
        self.firsts = _firsts(self.tensors)

    def schema(self):
        """What must be equal for a captured graph to fit, besides sizes and the structure. Hashable."""
        return tuple(_leaf_schema(leaf) for leaf in self.leaves)

    def sizes(self):
        return tuple(tuple(tensor.shape) for tensor in self.tensors)

    def without_tensors(self):
        """One of the same arguments that holds none of the tensors, for `with_tensors`."""
        hollow = copy.copy(self)
        hollow.args = hollow.kwargs = hollow.tensors = None
        hollow.leaves = [torch.empty(0) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        return hollow

    def with_tensors(self, tensors):
        """(args, kwargs) with other tensors in the places of ours, one where one of ours is in several, as forward may
        ask `x is y`; numbers out of them. Arrays are copied, their owner may change them."""
        tensors = list(tensors)
        rest = (tensors[first] for first in self.firsts)
        leaves = [
            next(rest) if isinstance(leaf, torch.Tensor) else leaf.copy() if is_array(leaf) else leaf
            for leaf in self.leaves
        ]
        leaves = [leaf.tensor() if isinstance(leaf, TableOfSizes) else leaf for leaf in leaves]
        for place in self.numbers:
            if not is_unread(leaves[place]):
                leaves[place] = leaves[place].item()
        return trees.unflatten(leaves, self.structure)

    def has_tables(self):
        return any(isinstance(leaf, TableOfSizes) for leaf in self.leaves)

    def number_indices(self):
        """Those of `tensors` that are numbers to forward."""
        tensors = [place for place, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]
        return frozenset(index for index, place in enumerate(tensors) if place in self.numbers)

    def strings(self):
        """Those of any value."""
        return [leaf for leaf in self.leaves if is_unread(leaf)]

    def name_strings(self, forward):
        if self.strings():
            for name, leaf in self.named_leaves(forward):
                if is_unread(leaf):
                    leaf.name = name

    def strings_of_data(self, forward):
        """{path: [names]} of plain strings in containers, those of one list together: of samples in a batch, more
        likely than of ways through forward."""
        groups = {}
        paths = (path for path, _ in trees.flatten_with_keys((self.args, self.kwargs)))
        for path, (name, leaf) in zip(paths, self.named_leaves(forward), strict=True):
            if type(leaf) is str and len(path) > 2:
                groups.setdefault(path[:-1] if type(path[-1]) is int else path, []).append(name)
        return groups

    def numbers_of(self, args, kwargs):
        """{index among `tensors`: the number in its place} of what `with_tensors` made."""
        leaves, _ = trees.flatten((args, kwargs))
        tensors = [place for place, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]
        return {index: leaves[place] for index, place in enumerate(tensors) if place in self.numbers}

    def held(self, forward):
        """{name of a leaf: text of its place} of the numbers that the module and what it reaches hold."""
        paths = (path for path, _ in trees.flatten_with_keys((self.args, self.kwargs)))
        named = zip(paths, self.named_leaves(forward), strict=True)
        return {name: path[2] for path, (name, _) in named if path[:2] == (1, HELD)}

    def words(self, forward):
        """{name of a leaf: what a reason calls it}."""
        held = self.held(forward)
        names = [name for name, _ in self.named_leaves(forward)]
        return {name: f"`{told(held[name])}`" if name in held else f"argument `{name}`" for name in names}

    def tensor_words(self, forward):
        """What a comparison calls each of `tensors`."""
        held = self.held(forward)
        return [told(held[name]) if name in held else name for name in self.names(forward)]

    def number_values(self, forward):
        """{name: int, float or string} of those of any value."""
        leaves, _ = trees.flatten((self.args, self.kwargs))
        names = [name for name, _ in self.named_leaves(forward)]
        return {names[place]: leaves[place] for place in self.numbers}

    def check(self, forward):
        """Raises UnsupportedError for an argument that no captured graph could take."""
        for place, leaf in enumerate(self.leaves):
            if (found := _what_no_graph_takes(leaf)) is not None:
                kind, text = found
                raise kind(f"argument `{self.named_leaves(forward)[place][0]}` {text}")

    def names(self, forward):
        """A name for each tensor: the parameter of `forward` that brings it, then keys and positions."""
        return [name for name, leaf in self.named_leaves(forward) if isinstance(leaf, torch.Tensor)]

    def named_leaves(self, forward):
        """[(name, leaf)], names unique."""
        parameters = list(inspect.signature(forward).parameters.values())
        taken, named = set(), []
        paths = [path for path, _ in trees.flatten_with_keys((self.args, self.kwargs))]
        for path, leaf in zip(paths, self.leaves, strict=True):
            keys = [str(key) for key in path[1:]]
            if path[0] == 0:
                keys = _positional_name(parameters, int(keys[0])) + keys[1:]
            name = re.sub(r"\W", "_", "_".join(keys)) or "input"
            if name[0].isdigit():
                name = f"input_{name}"
            while name in taken:
                name += "_"
            taken.add(name)
            named.append((name, leaf))
        return named


def _what_no_graph_takes(leaf):
    """(class of UnsupportedError, what it is), or None."""
    if not isinstance(leaf, torch.Tensor):
        return None if is_plain(leaf) else (UnsupportedData, f"is {trees.how_to_register(type(leaf))}")
    if leaf.device.type != "cpu":
        return UnsupportedDevice, f"is a tensor on {leaf.device}, expected one on the CPU"
    if leaf.layout is not torch.strided:
        return UnsupportedData, f"is a tensor of layout {leaf.layout}, expected a dense one"
    if type(leaf) not in PLAIN_TENSORS:
        return UnsupportedData, f"is a tensor subclass, {type(leaf).__name__}"
    if leaf.dtype not in DTYPES:
        return UnsupportedData, f"is a tensor of dtype {leaf.dtype}"
    if leaf.is_conj() or leaf.is_neg():
        return UnsupportedData, "is conjugated or negated when it is read; call resolve_conj().resolve_neg() on it"
    return None


def _leaf_schema(leaf):
    if is_unread(leaf):
        return (Unread,)
    if isinstance(leaf, torch.Tensor):
        return type(leaf), leaf.dtype, leaf.dim(), leaf.device.type, leaf.layout
    if is_array(leaf):
        return type(leaf), array_key(leaf)
    # In words a NaN is the same as itself, and 0.0 another number than -0.0.
    return type(leaf), repr(leaf) if isinstance(leaf, float | complex) else leaf if is_plain(leaf) else id(leaf)


def _firsts(tensors):
    """Of each the place of the first that is the same object."""
    places = {}
    return tuple(places.setdefault(id(tensor), place) for place, tensor in enumerate(tensors))


def snapshot(value):
    """What lowtide._lowtide.CallSchema asks of any object but a tensor, tuple, list or dict."""
    if (node := trees.one_level(value)) is not None:
        return "node", *node
    return ("key", array_key(value)) if is_array(value) else ("plain", value)


def schema_of(call, forward):
    """A CallSchema that matches calls like this one, with keyword arguments in any order."""
    return CallSchema(call.args, call.kwargs, _named(forward), snapshot, torch.Tensor, call.numbers)


def _named(forward):
    """Keywords that `forward` names: those of **kwargs come as the caller has them, also one called like its *args."""
    return [
        name
        for name, parameter in inspect.signature(forward).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]


def _in_order(kwargs, forward):
    if forward is None or len(kwargs) < 2:
        return dict(kwargs)
    known = [name for name in _named(forward) if name in kwargs]
    return {name: kwargs[name] for name in (*known, *(name for name in kwargs if name not in known))}


def _positional_name(parameters, index):
    for position, parameter in enumerate(parameters):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            return [parameter.name, str(index - position)]
        if position == index:
            return [parameter.name]
    return ["args", str(index)]
