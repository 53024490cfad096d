"""Sizes that come back out of tensors: `torch.tensor([h, w])[0].item()` is a symbol of its own to the exporter.

It equals what was put in, and so does the length of a slice between two of them: no size from data.
"""

import math
import operator
import re

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from .op_schemas import arguments_of

aten = torch.ops.aten

_MOST = 64  # elements of a tensor of sizes: a height and a width for each level
_SAME = (aten.to, aten._to_copy, aten.detach, aten.detach_, aten.clone, aten.alias, aten.lift_fresh_copy)
_PLACES = (
    (aten.select, aten.slice, aten.unbind, aten.split, aten.split_with_sizes, aten.chunk, aten.stack, aten.cat)
    + (aten.view, aten.reshape, aten._unsafe_view, aten.flatten, aten.unsqueeze, aten.squeeze)
    + (aten.permute, aten.transpose, aten.t, aten.expand, aten.flip)
)
_ARITHMETIC = {
    aten.add: operator.add,
    aten.sub: operator.sub,
    aten.rsub: lambda first, second: second - first,
    aten.mul: operator.mul,
    aten.neg: operator.neg,
    aten.floor_divide: FloorDiv,
    aten.minimum: sympy.Min,
    aten.maximum: sympy.Max,
}
_REDUCED = {aten.sum: sum, aten.prod: math.prod}


def is_from_data(symbol):
    """Whether an export found the symbol in data: "u0"."""
    return isinstance(symbol, sympy.Symbol) and re.fullmatch(r"u\d+", str(symbol)) is not None


def sizes_read_back(program, sizes):
    """(symbol of the exporter's, what it equals) in the order of the program.

    `sizes`: Sizes of the program, which replaces each symbol before it asks for the next.
    """
    resolve = sizes.resolve
    known = _TensorsOfSizes(resolve)
    others = set()  # what else is made of those: perhaps views of them
    literals = {
        name: program.constants[target]
        for name, target in program.graph_signature.inputs_to_lifted_tensor_constants.items()
    }
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if node.target is operator.getitem:
                known.take_item(node)
            if not isinstance(node.target, torch._ops.OpOverload):
                continue
            made = node.meta.get("val")
            packet = node.target.overloadpacket
            inputs = node.all_input_nodes
            touches = any(argument in known or argument in others for argument in inputs)
            if touches and node.target._schema.is_mutable and packet is not aten.detach_:
                return
            if touches:
                others.add(node)
            if packet is aten.lift_fresh_copy and inputs[0].name in literals:
                known.put_literal(node, literals[inputs[0].name])
            elif packet is aten.slice and inputs[0] not in known:
                if (found := _length(node, resolve, sizes)) is not None:
                    yield found
            elif packet is aten.item:
                value = known.number(node.args[0])
                if value is not None and isinstance(made, torch.SymInt) and sympy.sympify(resolve(made)).is_Symbol:
                    yield resolve(made), value
            else:
                known.put(node, packet)


class _Unknown(Exception):
    pass


class _TensorsOfSizes:
    """Nodes that are small tensors of integers, each a tensor of places in a list of what they equal: an op that moves
    elements moves places."""

    def __init__(self, resolve):
        self._resolve = resolve
        self._values, self._places = [], {}  # expressions, and where each is
        self._held = {}  # node → a tensor of places, or a list of them

    def __contains__(self, node):
        return node in self._held

    def number(self, node):
        """Of a tensor of one element, else None."""
        places = self._held.get(node)
        return self._values[places.item()] if isinstance(places, torch.Tensor) and places.numel() == 1 else None

    def put_literal(self, node, tensor):
        """`tensor`: numbers that forward itself has written."""
        if tensor.dtype == torch.int64 and tensor.numel() <= _MOST:
            self._hold(node, torch.tensor([self._place(value) for value in tensor.flatten().tolist()]), tensor.shape)

    def take_item(self, node):
        source, index = node.args
        if isinstance(places := self._held.get(source), list | tuple):
            self._held[node] = places[index]

    def put(self, node, packet):
        """What an op makes, if nothing but sizes is in it."""
        made = node.meta.get("val")
        tensors = made if isinstance(made, list | tuple) else [made]
        if not tensors or not all(isinstance(tensor, torch.Tensor) and _is_small(tensor) for tensor in tensors):
            return
        try:
            self._make(node, packet)
        except _Unknown:
            return

    def _make(self, node, packet):
        args, shape = node.args, getattr(node.meta["val"], "shape", None)
        if packet is aten.scalar_tensor or packet in _SAME:
            self._hold(node, self._operand(args[0]), shape)
        elif packet in _PLACES:
            moved = torch.fx.map_arg((args, node.kwargs), self._argument)
            self._held[node] = node.target(*moved[0], **moved[1])
        elif packet in _ARITHMETIC:
            if len(args) > 2 or node.kwargs.get("alpha", 1) != 1:
                raise _Unknown
            operands = torch.broadcast_tensors(*map(self._operand, args))
            rows = zip(*(places.flatten().tolist() for places in operands), strict=True)
            self._hold(node, self._computed(_ARITHMETIC[packet], rows), shape)
        elif packet in _REDUCED:
            rows = _rows(self._operand(args[0]), args[1] if len(args) > 1 else None)
            self._hold(node, self._computed(lambda *row: _REDUCED[packet](row), rows), shape)
        elif packet is aten.cumsum:
            places, dim = self._operand(args[0]), args[1]
            sums = [
                self._computed(lambda *row: sum(row), [row[: end + 1] for end in range(len(row))])
                for row in _rows(places, dim)
            ]
            moved = torch.stack(sums).reshape(places.movedim(dim, -1).shape) if sums else places
            self._hold(node, moved.movedim(-1, dim), shape)

    def _hold(self, node, places, shape):
        self._held[node] = places.reshape(shape)

    def _computed(self, function, rows):
        return torch.tensor([self._place(function(*(self._values[place] for place in row))) for row in rows])

    def _place(self, value):
        value = sympy.sympify(value)
        if value not in self._places:
            self._places[value] = len(self._values)
            self._values.append(value)
        return self._places[value]

    def _argument(self, node):
        """Of an op that moves elements: numbers are where to."""
        if node in self._held:
            return self._held[node]
        value = node.meta.get("val")
        if not isinstance(value, int | torch.SymInt) or not isinstance(number := self._resolve(value), int):
            raise _Unknown
        return number

    def _operand(self, argument):
        """A tensor of places."""
        if isinstance(argument, torch.fx.Node):
            if isinstance(places := self._held.get(argument), torch.Tensor):
                return places
            argument = argument.meta.get("val")
        if not isinstance(argument, int | torch.SymInt) or isinstance(argument, bool):
            raise _Unknown
        return torch.tensor(self._place(self._resolve(argument)))


def _is_small(tensor):
    shape = tensor.shape
    return tensor.dtype == torch.int64 and all(type(size) is int for size in shape) and math.prod(shape) <= _MOST


def _rows(places, dims):
    """What is summed over `dims`, or over all of them."""
    dims = list(range(places.dim())) if dims is None or dims == [] else [dims] if isinstance(dims, int) else list(dims)
    count = math.prod(places.shape[dim] for dim in dims)
    moved = places.movedim(dims, list(range(-len(dims), 0))) if places.dim() else places
    return moved.reshape(-1, count).tolist() if count else []


def _length(node, resolve, sizes):
    """(the symbol for a slice's length, what it equals), where it begins and ends at sizes."""
    arguments = {argument.name: value for argument, value in arguments_of(node)}
    source, dim = arguments["self"].meta["val"], arguments.get("dim", 0)
    positions = [arguments.get("start"), arguments.get("end")]
    if arguments.get("step", 1) != 1 or not any(isinstance(position, torch.fx.Node) for position in positions):
        return None
    size = sympy.sympify(resolve(source.shape[dim]))
    length = resolve(node.meta["val"].shape[dim])
    start, end = (
        default
        if position is None
        else sympy.sympify(resolve(position.meta["val"] if isinstance(position, torch.fx.Node) else position))
        for position, default in zip(positions, (sympy.Integer(0), size), strict=True)
    )
    if not is_from_data(length) or any(map(is_from_data, set().union(*(at.free_symbols for at in (start, end, size))))):
        return None
    start, end = (
        _within(position + size if sizes.is_negative(position) else position, size, sizes) for position in (start, end)
    )
    return length, _no_less_than_zero(sympy.expand(end - start), sizes)


def _within(position, size, sizes):
    position = _no_less_than_zero(position, sizes)
    return position if sizes.range_of(size - position).lower >= 0 else sympy.Min(position, size)


def _no_less_than_zero(value, sizes):
    return value if sizes.range_of(value).lower >= 0 else sympy.Max(value, 0)
