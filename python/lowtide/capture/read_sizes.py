"""Sizes that come back out of tensors: `torch.tensor(x.size(1)).item()` is a symbol of its own to the exporter.

It equals what was put in, and so does the length of a slice between two of them: no size from data.
"""

import operator
import re

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from .op_schemas import arguments_of

aten = torch.ops.aten

_SAME = (aten.to, aten._to_copy, aten.detach, aten.detach_, aten.clone, aten.alias, aten.lift_fresh_copy)
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


def is_from_data(symbol):
    """Whether an export found the symbol in data: "u0"."""
    return isinstance(symbol, sympy.Symbol) and re.fullmatch(r"u\d+", str(symbol)) is not None


def sizes_read_back(program, sizes):
    """(symbol of the exporter's, what it equals) in the order of the program.

    `sizes`: Sizes of the program, which replaces each symbol before it asks for the next.
    """
    resolve = sizes.resolve
    held = {}  # node of a 0-d tensor of integers → its value
    others = set()  # what else is made of those: perhaps views of them
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if not isinstance(node.target, torch._ops.OpOverload):
                continue
            made = node.meta.get("val")
            packet = node.target.overloadpacket
            touches = not held.keys().isdisjoint(node.args) or not others.isdisjoint(node.args)
            if touches and node.target._schema.is_mutable and packet is not aten.detach_:
                return
            if touches:
                others.add(node)
            if packet is aten.slice:
                if (found := _length(node, resolve, sizes)) is not None:
                    yield found
            elif packet is aten.item:
                if node.args[0] in held and isinstance(made, torch.SymInt) and resolve(made).is_Symbol:
                    yield resolve(made), held[node.args[0]]
            elif isinstance(made, torch.Tensor) and made.dim() == 0 and made.dtype == torch.int64:
                if (value := _value(node, packet, held, resolve)) is not None:
                    held[node] = value


def _value(node, packet, held, resolve):
    """Of a 0-d tensor of integers, in sizes; None where it holds other things."""

    def number(argument):
        if isinstance(argument, torch.fx.Node):
            if argument in held:
                return held[argument]
            argument = argument.meta.get("val")
        known = isinstance(argument, int | torch.SymInt) and not isinstance(argument, bool)
        return sympy.sympify(resolve(argument)) if known else None

    operands = [number(argument) for argument in node.args[: 1 if packet in (aten.scalar_tensor, *_SAME) else 2]]
    if (
        not operands
        or None in operands
        or node.kwargs.get("alpha", 1) != 1
        or len(node.args) > 2
        and packet in _ARITHMETIC
    ):
        return None
    if packet in (aten.scalar_tensor, *_SAME):
        return operands[0]
    return _ARITHMETIC[packet](*operands) if packet in _ARITHMETIC else None


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
    if not is_from_data(length) or any(map(is_from_data, (start + end + size).free_symbols)):
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
