"""Sizes from data: symbols of an export that ops find while they run, and the numbers that `item()` reads.

An op whose result is as large as its data says makes a symbol, in the shape of what it returns. A number that `item()`
reads is a size where a shape names it; then it needs a bound, which the plan reserves bytes by: of the checks on it
(torch._check), or of what the exporter knows. Else it is a number among the operands (numbers.py).
"""

import sympy
import torch
import torch.utils._pytree as pytree
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.functions import Max
from torch.utils._sympy.numbers import int_oo

from lowtide.errors import UnsupportedError
from lowtide.guards.conditions import multiples

from .op_schemas import arguments_of
from .read_sizes import is_from_data
from .sizes import asserted

_OF_NONZERO = (torch.ops.aten.count_nonzero.default, torch.ops.aten.count_nonzero.dim_IntList)
_COUNTS = (torch.ops.aten.sum.default, torch.ops.aten.sum.dim_IntList, *_OF_NONZERO)
_LARGEST = (torch.ops.aten.max.default, torch.ops.aten.amax.default)
_MOST = 2**40  # of a number that is no dim's size: a position, or one that is only checked


def symbols_of(value):
    """The symbols of a tensor's shape that ops find."""
    return [symbol for size in value.shape if isinstance(size, torch.SymInt) for symbol in free_unbacked_symbols(size)]


class DataSizes:
    """Of one graph that is being imported."""

    def __init__(self, graph, sizes, program, takes_as_usual):
        """`graph`: being made; `sizes`: Sizes of the program; `takes_as_usual`: whether labels are fewer than what they
        are put on."""
        self._graph, self._sizes, self._takes_as_usual = graph, sizes, takes_as_usual
        self._conditions = [sizes.resolve(condition) for condition in asserted(program)]
        # Symbols that these name, and arguments that are integers.
        self._checked = set().union(*map(_free_symbols, self._conditions))
        self._in_shapes = set()  # symbols that name a dim of some tensor
        self._offsets = set()  # symbols that name where a view begins
        self._counts = set()  # symbols that ops find: no step holds them to a limit
        for module in program.graph_module.modules():
            if isinstance(module, torch.fx.GraphModule):
                for node in module.graph.nodes:
                    self._read(node)

    def _read(self, node):
        if isinstance(node.target, torch._ops.OpOverload):
            for argument, value in arguments_of(node):
                if "Int" in str(argument.real_type) or "int" in str(argument.real_type):
                    self._read_argument(value)
        if node.target is torch.ops.aten.sym_storage_offset.default:
            self._offsets |= _free_symbols(self._sizes.resolve(node.meta["val"]))
        for value in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(value, torch.Tensor):
                for symbol in symbols_of(value):
                    self._in_shapes |= _free_symbols(self._sizes.resolve(symbol))

    def _read_argument(self, value):
        for leaf in pytree.tree_leaves(value):
            number = leaf.meta.get("val") if isinstance(leaf, torch.fx.Node) else leaf
            if isinstance(number, torch.SymInt):
                self._checked |= _free_symbols(self._sizes.resolve(number))

    def is_size(self, node):
        """Whether a number that `item()` reads is one: a shape names it, a check, or an argument that is an integer."""
        value = node.meta["val"]
        named = self._in_shapes | self._checked
        return isinstance(value, torch.SymInt) and not named.isdisjoint(_free_symbols(self._sizes.resolve(value)))

    def name_symbols_of(self, value):
        """The symbols in the shape of what an op returns have names from here on."""
        for symbol in symbols_of(value):
            for known in _free_symbols(self._sizes.resolve(symbol)):
                self._counts.add(known)
                self._name(known)

    def _name(self, symbol):
        if self._sizes.name_data_size(symbol):
            low = self._low(symbol)
            self._graph.add_symbol_range(
                self._sizes.dim(symbol), max(0, low) if symbol in self._in_shapes else low, None
            )

    def _low(self, symbol):
        low = self._sizes.range_of(symbol).lower
        return int(low) if low not in (-int_oo, -sympy.oo) else -_MOST

    def add_number(self, node, number, origin):
        """From here on what `item()` read, the value `number`, is a size."""
        expression = self._sizes.resolve(node.meta["val"])
        high = self._high(expression, node)
        for symbol in _free_symbols(expression):
            self._name(symbol)
        low = self._low(expression) if expression.is_Symbol else 0
        attrs = {"size": ("int", self._sizes.dim(expression)), "low": ("int", low), "high": ("int", high)}
        self._graph.add_aten("lowtide::size.default", [number], ["self"], [], attrs, *origin(node))

    def _high(self, symbol, node):
        if _free_symbols(symbol) <= self._sizes.known_symbols():
            return _MOST  # it is compared with what is known
        upper = self._sizes.range_of(symbol).upper if symbol.is_Symbol else int_oo
        if upper not in (int_oo, sympy.oo) and int(upper) < _MOST:
            return int(upper)
        if self._in_shapes.isdisjoint(_free_symbols(symbol)):
            return _MOST
        for condition in self._conditions:
            if (bound := self._bound(symbol, condition)) is not None:
                return self._sizes.dim(bound)
        if (elements := self._counted(node)) is not None:
            return self._sizes.dim(elements)
        if self._takes_as_usual and (last := self._last_label(node)) is not None:
            return self._sizes.dim(last)
        error = UnsupportedError(
            "a number that item() reads is a size without an upper bound: torch._check(number <= limit) gives it one"
        )
        error.of_data = True
        raise error

    def _counted(self, node):
        """Of how many elements a number counts those that are true, or not 0. None of another number."""
        count = node.args[0]
        if count.target not in _COUNTS:
            return None
        counted = count.args[0]
        while getattr(counted.target, "_opname", "") in ("to", "_to_copy"):
            counted = counted.args[0]
        if count.target not in _OF_NONZERO and counted.meta["val"].dtype is not torch.bool:
            return None
        elements = self._sizes.resolve(counted.meta["val"].numel())
        return elements if _free_symbols(elements) <= self._sizes.known_symbols() else None

    def _last_label(self, node):
        """What the largest of labels is at most: there are no more of them than elements. None of another number."""
        largest, least = node.args[0], 0
        if largest.target is torch.ops.aten.clamp.default and len(largest.args) == 2:
            largest, least = largest.args
            if getattr(least, "target", None) is torch.ops.aten.item.default:
                least = self._last_label(least)  # of other labels
            else:
                least = self._sizes.resolve(least.meta["val"] if isinstance(least, torch.fx.Node) else least)
            if least is None:
                return None
        if largest.target not in _LARGEST or largest.args[0].meta["val"].dtype not in (torch.int64, torch.int32):
            return None
        elements = self._sizes.resolve(largest.args[0].meta["val"].numel())
        if not _free_symbols(elements) | _free_symbols(least) <= self._sizes.known_symbols():
            return None
        return sympy.Max(elements - 1, least) if least else elements - 1

    def _bound(self, symbol, condition):
        """What a condition says that the symbol is at most, in sizes that are known; None where it says nothing."""
        difference = _at_most_zero(condition)
        if difference is None or sympy.expand(difference).coeff(symbol, 1) != 1:
            return None
        rest = sympy.expand(difference) - symbol
        for other in filter(is_from_data, _free_symbols(rest)):
            # The others of a sum are no less than 0: a bound holds for the least of them.
            factor = rest.coeff(other, 1)
            if factor.is_Integer and factor > 0 and self._sizes.range_of(other).lower >= 0:
                rest = sympy.expand(rest - factor * other)
        return -rest if not _free_symbols(rest) - self._sizes.known_symbols() else None

    def concerns(self, condition):
        """Whether a condition is on sizes from data."""
        symbols = _free_symbols(self._sizes.resolve(condition))
        return self._sizes.is_data(condition) or not self._offsets.isdisjoint(symbols)

    def add_check(self, condition, node, origin):
        """A condition on sizes from data, which each step checks; of where views begin in memory there is none."""
        expression = self._sizes.resolve(condition)
        if isinstance(expression, sympy.And):
            for each in expression.args:
                self.add_check(each, node, origin)
            return
        if not self._offsets.isdisjoint(_free_symbols(expression)):
            return
        if expression in (True, sympy.true) or self._sizes.always_holds(expression, self._counts):
            return
        if isinstance(expression, sympy.Ne) and (found := multiples(expression)) is not None and 0 not in found[1:]:
            return
        difference = self._at_most_zero(expression)
        if difference is None:
            raise UnsupportedError(f"forward checks {expression}, which depends on data")
        low = 0 if isinstance(expression, sympy.Eq) else -_MOST
        attrs = {"difference": ("int", self._sizes.difference(difference)), "low": ("int", low), "high": ("int", 0)}
        self._graph.add_aten("lowtide::check_size.default", [], [], [], attrs, *origin(node))

    def _at_most_zero(self, condition):
        """As the function, and of what is no less than 0 that it is not 0."""
        if isinstance(condition, sympy.Ne) and condition.rhs == 0:
            if condition.lhs in self._in_shapes or self._sizes.range_of(condition.lhs).lower >= 0:
                return 1 - condition.lhs
        if isinstance(condition, sympy.Ne) and condition.rhs.is_Integer:
            factor, rest = condition.lhs.as_coeff_Mul()
            if factor > 1 and condition.rhs == factor:
                return self._at_most_zero(sympy.Ne(rest, 1))
        if isinstance(condition, sympy.Ne) and condition.rhs == 1:
            if type(condition.lhs) is Max and 1 in condition.lhs.args and len(condition.lhs.args) == 2:
                return 3 - sum(condition.lhs.args)  # the other one is 2 or more
            if sympy.Ne(condition.lhs, 0) in self._conditions:
                return 2 - condition.lhs
        return _at_most_zero(condition)


def _free_symbols(expression):
    return getattr(expression, "free_symbols", set())


def _at_most_zero(condition):
    """The difference of an inequality or an equation of integers; None of others."""
    if isinstance(condition, sympy.Le | sympy.Eq):
        return condition.lhs - condition.rhs
    if isinstance(condition, sympy.Ge):
        return condition.rhs - condition.lhs
    if isinstance(condition, sympy.Lt):
        return condition.lhs - condition.rhs + 1
    if isinstance(condition, sympy.Gt):
        return condition.rhs - condition.lhs + 1
    return None
