"""Symbolic sizes: which symbol is which dim of which input, and the guards under which a captured graph is right."""

import contextlib

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from lowtide.errors import GraphError, UnsupportedError

from .exact_divisions import without_common_factors, without_exact_divisions
from .known_sizes import Guard, KnownSizes
from .least_sizes import as_bounds, smaller_that_is
from .read_sizes import is_from_data, sizes_read_back
from .size_printers import FormulaPrinter, GrammarPrinter, OutsideGrammar

aten = torch.ops.aten

_LARGEST = sympy.Integer(2**63 - 1)  # of a number in 64 bits


class NeedsConstants(Exception):
    """An expression that the graph's grammar lacks: these dims have to be constants."""

    def __init__(self, dims):
        super().__init__(f"sizes {sorted(dims)} must be constants")
        self.dims = frozenset(dims)


class Sizes(KnownSizes):
    """Names the symbols of an export after the inputs that carry them, and prints expressions over these names.

    A dim is (index of the tensor, index of the dim); its name is "<input>_dim<i>".
    """

    def __init__(self, exported, facts, placeholders):
        """`placeholders`: the fake tensor of each input tensor."""
        self._example = exported.sizes
        self._facts = facts
        self._environment = next((tensor.fake_mode.shape_env for tensor in placeholders), None)
        # The ranges of the export: questions about its tensors narrow the environment's.
        self._symbol_ranges = dict(self._environment.var_to_range) if self._environment is not None else {}
        self._exported = exported
        self._unsolved = []  # differences of sizes that must be equal, and may not be for all that is known
        self._products = []  # such differences that tensors of the graph need not show
        self._sums = []  # (sizes from data that are added, what they add up to in sizes of the inputs)
        self._read_back = set()  # symbols of sizes that item() read out of a tensor again
        self._replacements = {}  # sympy symbol → what it equals: a number, or an expression of other symbols
        self._replace_equal_sizes(placeholders)
        self.dims = {
            f"{exported.names[index]}_dim{position}": (index, position)
            for index, tensor in enumerate(placeholders)
            for position in range(tensor.dim())
        }
        self._data = set()  # sympy symbols of sizes that ops find
        self.guards = []
        self._required = set()  # sizes that are guarded, or known, to be no less than 0
        self._formulas = {}
        self._name_sizes(placeholders)
        while self._replace_with_ties():
            self._name_sizes(placeholders)
        self._check_solved()
        self._collect_guards()

    # ---- expressions

    def resolve(self, value):
        """A size of the exporter's: an int, or a sympy expression with the shape environment's replacements applied."""
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            value = value.node.expr
        if isinstance(value, sympy.Basic):
            if self._environment is not None:
                value = as_bounds(self._environment.replace(value)).xreplace(self._replacements)
                if self._sums and isinstance(value, sympy.Expr):
                    value = self._with_sums(value)
            return int(value) if value.is_Integer else value
        return value

    def _with_sums(self, value):
        """With the known size in the place of a sum of sizes from data."""
        for added, known in self._sums:
            if not value.free_symbols.isdisjoint(added.free_symbols):
                expanded = sympy.expand(value)
                factors = {expanded.coeff(symbol, 1) for symbol in added.free_symbols}
                if len(factors) == 1:
                    factor = factors.pop()
                    value = sympy.expand(expanded - factor * added + factor * known)
        return value

    def difference(self, value):
        """`dim` of what is 0 where sizes from data add up as they must."""
        sums, self._sums = self._sums, []
        try:
            return self.dim(value)
        finally:
            self._sums = sums

    def dim(self, value):
        """An int, or text in the graph's grammar."""
        value = self.resolve(value)
        if isinstance(value, int):
            return value
        self._check_known(value)
        try:
            return GrammarPrinter(self._text).print(value)
        except OutsideGrammar:
            raise NeedsConstants(self.dims_of(value)) from None

    def are_equal(self, first, second):
        """Whether two sizes are one, for all that is known."""
        difference = sympy.expand(self.resolve(first) - self.resolve(second))
        return difference == 0 or difference.has(FloorDiv) and self._without_exact_divisions(difference) == 0

    def shape(self, values):
        shape = [self.dim(value) for value in values]
        for value in values:
            self.require(value)  # of no elements the exporter may think as of one
        return shape

    def text(self, value):
        """Of a SizeFormula over the names of dims, for guards and for sizes among the outputs."""
        value = self.resolve(value)
        if isinstance(value, int | float | bool):
            return repr(value)
        self._check_known(value)
        if self.is_data(value):
            raise UnsupportedError("a size from data stands where the inputs' sizes must tell")
        try:
            text = FormulaPrinter(self._text).doprint(value)
            self.formula(text)
            return text
        except (OutsideGrammar, GraphError):
            raise NeedsConstants(self.dims_of(value)) from None

    def dims_of(self, expression):
        """The dims of inputs that an expression depends on."""
        return {self._owner[symbol] for symbol in expression.free_symbols if symbol in self._owner}

    def dynamic_axes(self):
        """{input: {dim: name}} of the sizes that are no constants; ties have one name."""
        axes = {}
        names = {dim: name for name, dim in self.dims.items()}
        for name, (index, position) in self.dims.items():
            if not isinstance(self._shapes[index][position], int):
                input_name = name.rpartition("_dim")[0]
                axes.setdefault(input_name, {})[position] = names[self.ties.get((index, position), (index, position))]
        return axes

    def _check_known(self, expression):
        if not expression.free_symbols <= self.known_symbols():
            raise UnsupportedError("a size or a number depends on data")

    # ---- sizes from data

    def known_symbols(self):
        return self._owner.keys() | self._data

    def name_data_size(self, symbol):
        """Whether the symbol had no name; then it has its own from here on."""
        if symbol in self.known_symbols():
            return False
        self._data.add(symbol)
        self._text[symbol] = f"data_{symbol}"  # u8 alone is a dtype to the graph
        return True

    def is_data(self, value):
        """Whether a size depends on what an op finds."""
        return not self._data.isdisjoint(getattr(self.resolve(value), "free_symbols", ()))

    def is_read_back(self, value):
        """Whether item() read the size, or what it is computed from, out of a tensor into which it was put."""
        return isinstance(value, torch.SymInt) and not self._read_back.isdisjoint(value.node.expr.free_symbols)

    def put_in(self, value):
        """A number of the exporter's as what it is computed from, where that is a size that was read back."""
        if not self.is_read_back(value):
            return value
        expression = self.resolve(value)
        return expression if isinstance(expression, int) else self._symbolic(expression)

    def _symbolic(self, expression):
        return self._environment.create_symintnode(expression, hint=None)

    def is_negative(self, position):
        """Whether it counts from the end: always, or in the example."""
        known = self.range_of(position)
        if known.upper < 0 or known.lower >= 0:
            return bool(known.upper < 0)
        return self._symbolic(position).node.hint < 0

    def range_of(self, expression):
        return bound_sympy(expression, self._environment.var_to_range)

    def always_holds(self, condition, unbounded):
        """Whatever the symbols are; those of `unbounded` may be any number of elements: what the exporter takes them
        for, it has from conditions."""
        ranges = dict(self._environment.var_to_range)
        for symbol in condition.free_symbols & ranges.keys():
            known = ranges[symbol]
            lower, upper = (0, _LARGEST) if symbol in unbounded else (known.lower, min(known.upper, _LARGEST))
            ranges[symbol] = ValueRanges(lower, max(upper, lower))
        known = bound_sympy(condition, ranges)
        return known.is_singleton() and bool(known.lower)

    # ---- symbols

    def _replace_equal_sizes(self, placeholders):
        """A guard `s == 3` leaves s in the shapes as if it could be anything, and `s + t == u + v` all four."""
        shapes = [self.resolve(size) for tensor in placeholders for size in tensor.shape]
        symbols = [
            symbol for size in shapes if not isinstance(size, int) for symbol in sorted(size.free_symbols, key=str)
        ]
        self._symbols = list(dict.fromkeys(symbols))
        for guard in self._guards():
            expression = self.resolve(guard)
            if isinstance(expression, sympy.Eq):
                difference = expression.lhs - expression.rhs
                if difference.has(FloorDiv):
                    exact = self._without_exact_divisions(difference)
                else:
                    exact = without_common_factors(difference)
                if exact is not None and self._replace_one_of(exact) or self._replace_one_of(difference):
                    continue
                difference = difference if exact is None else exact
                if _is_product_and_number(difference):
                    self._unsolved.append(sympy.expand(difference))
                elif difference.is_polynomial():
                    self._products.append(sympy.expand(difference))
        for symbol, equal in sizes_read_back(self._exported.program, self):
            self._replacements[symbol] = equal
            self._read_back.add(symbol)
        for condition in asserted(self._exported.program):
            if (found := smaller_that_is(self._environment.replace(condition.node.expr))) is not None:
                least, equal = found
                self._replacements[least] = equal
        self._replace_equal_data_sizes()
        for first, second in sizes_taken_as_one(self._exported.program):
            difference = sympy.expand(self.resolve(first) - self.resolve(second))
            if not self._replace_one_of(difference) and difference.is_polynomial():
                self._unsolved.append(difference)

    def _without_exact_divisions(self, difference):
        equal = [self.resolve(guard) for guard in self._guards() if isinstance(guard, sympy.Eq)]
        zeros = [each.lhs - each.rhs for each in equal if isinstance(each, sympy.Eq)]
        return without_exact_divisions(difference, zeros)

    def _guards(self):
        return [guard.expr for guard in self._environment.guards] if self._environment is not None else []

    def _replace_equal_data_sizes(self):
        """Of `u0 == u1` u1 becomes u0, or what else it equals in sizes that only add up: where they are counted, they
        are compared. Of `u0 + u1 == n` the sum becomes n."""
        for condition in asserted(self._exported.program):
            condition = self.resolve(condition)
            if not isinstance(condition, sympy.Eq):
                continue
            difference = sympy.expand(condition.lhs - condition.rhs)
            found = [symbol for symbol in difference.free_symbols if is_from_data(symbol)]
            for symbol in sorted(found, key=lambda each: -int(str(each)[1:])):
                factor = difference.coeff(symbol, 1)
                solution = sympy.expand(symbol - difference * factor)
                if factor not in (1, -1) or symbol in solution.free_symbols:
                    continue
                if any(solution.coeff(other, 1).is_negative for other in found):
                    continue
                self._replacements = {old: new.xreplace({symbol: solution}) for old, new in self._replacements.items()}
                self._replacements[symbol] = solution
                break
            else:
                factors = {difference.coeff(symbol, 1) for symbol in found}
                if len(found) > 1 and factors in ({1}, {-1}):
                    added = sympy.Add(*found)
                    self._sums.append((added, sympy.expand(added - difference * factors.pop())))

    def _replace_with_ties(self):
        """Of `24*batch == batch*length` length is 24, where the two batches are tied. Whether there is such a size."""
        left = self._left(self._unsolved + self._products)
        return any([self._replace_one_of(without_common_factors(difference)) for difference in left])

    def _left(self, differences):
        """What is left of those that must be 0: tied sizes are equal."""
        symbols = {dim: symbol for symbol, dim in self._owner.items()}
        tied = {symbols[dim]: symbols[first] for dim, first in self.ties.items()}
        return [sympy.expand(difference.xreplace(self._replacements).xreplace(tied)) for difference in differences]

    def _check_solved(self):
        """Of `64*batch == batch*height*width` height and width become constants, and the batch stays free.

        Else one size has two names, and shapes that hold them do not fit each other.
        """
        products = map(without_common_factors, self._left(self._products))
        left = self._left(self._unsolved) + [each for each in products if _is_product_and_number(each)]
        dims = {self._owner[symbol] for difference in left for symbol in difference.free_symbols & self._owner.keys()}
        if dims:
            raise NeedsConstants({dim for dim in dims if dim[1] > 0} or dims)

    def _replace_one_of(self, difference):
        """Replaces the last symbol that follows from the others where the difference of two sizes is 0; whether there
        is one."""
        difference = sympy.expand(difference)
        for symbol in reversed(self._symbols):
            factor = difference.coeff(symbol, 1)
            rest = difference - factor * symbol
            if not factor.is_Integer or factor == 0 or symbol in sympy.expand(rest).free_symbols:
                continue
            solution = sympy.expand(-rest / factor)
            if all(term.as_coeff_Mul()[0].is_Integer for term in sympy.Add.make_args(solution)):
                self._replacements = {old: new.xreplace({symbol: solution}) for old, new in self._replacements.items()}
                self._replacements[symbol] = solution
                return True
        return False

    def _name_sizes(self, placeholders):
        self._shapes = [[self.resolve(size) for size in tensor.shape] for tensor in placeholders]
        self._owner = {}  # sympy symbol → dim that carries it first
        self._text = {}  # sympy symbol → text over names of dims
        self.ties = {}  # dim → earlier dim that stands for it
        self._name_symbols()
        self._tie()

    def _name_symbols(self):
        pending = []
        for name, (index, position) in self.dims.items():
            size = self._shapes[index][position]
            if isinstance(size, sympy.Symbol) and size not in self._owner:
                self._owner[size], self._text[size] = (index, position), name
            elif not isinstance(size, int):
                pending.append((name, (index, position), size))
        # A size like 2*s + 1 whose s is nowhere alone.
        for name, dim, size in pending:
            unknown = [symbol for symbol in size.free_symbols if symbol not in self._owner]
            if len(unknown) != 1 or len(size.free_symbols) != 1:
                continue
            factor, rest = size.coeff(unknown[0], 1), size.coeff(unknown[0], 0)
            if factor.is_Integer and rest.is_Integer and sympy.expand(factor * unknown[0] + rest - size) == 0:
                self._owner[unknown[0]] = dim
                self._text[unknown[0]] = f"(({name} - {int(rest)})//{int(factor)})"

    def _tie(self):
        """Symbols of different inputs at the same dim, equal in the example, become one."""
        names = {dim: name for name, dim in self.dims.items()}
        plain = {self._owner[symbol]: symbol for symbol, text in self._text.items() if text in self.dims}
        for dim, symbol in plain.items():
            index, position = dim
            for other in range(index):
                first = (other, position)
                if (
                    first in plain
                    and self._example[other][position] == self._example[index][position]
                    and frozenset((first, dim)) not in self._facts.untied
                    and _meet(self._range(plain[first]), self._range(symbol))
                ):
                    self.ties[dim] = self.ties.get(first, first)
                    self._text[symbol] = names[self.ties[dim]]
                    break

    def _range(self, symbol):
        bounds = self._symbol_ranges.get(symbol)
        low = 0 if bounds is None or bounds.lower in (-int_oo, -sympy.oo) else max(0, int(bounds.lower))
        # A sum of sizes that come from data has for its bound the sum of theirs, each the largest int but one.
        bounded = bounds is not None and bounds.upper < _LARGEST - 1
        return low, int(bounds.upper) if bounded else None

    def ranges(self):
        """name → (low, high or None) of the symbols in the graph."""
        result = {}
        for symbol, text in self._text.items():
            if text in self.dims:
                low, high = self._range(symbol)
                other_low, other_high = result.get(text, (0, None))
                result[text] = max(low, other_low), _smaller(high, other_high)
        return result

    # ---- guards

    def _collect_guards(self):
        names = {dim: name for name, dim in self.dims.items()}
        for dim, first in self.ties.items():
            self.guards.append(Guard(f"{names[dim]} == {names[first]}", tie=(first, dim)))
        for name, (index, position) in self.dims.items():
            size = self._shapes[index][position]
            if isinstance(size, int):
                self.guards.append(Guard(f"{name} == {size}", fixed=(index, position)))
            elif self._text.get(size) != name and (index, position) not in self.ties:
                self.guards.append(Guard(f"{name} == {self.text(size)}"))
        for name, (low, high) in self.ranges().items():
            if low > 0:
                self.guards.append(Guard(f"{name} >= {low}"))
            if high is not None:
                self.guards.append(Guard(f"{name} <= {high}"))
        for guard in self._guards():
            self.add_guard(guard)
        for condition, answer in self._exported.conditions:
            self._guard_answer(self.resolve(condition), answer)
        if any(not getattr(condition, "free_symbols", ()) for condition, _ in self._exported.conditions):
            # What the exporter knows without asking, such as that no size is 0.
            for name in self.ranges():
                self._add_guard(f"{name} >= 1")

    def _guard_answer(self, condition, answer):
        """The exporter has a guard of its own for what it did not take for granted, no size being 0 or 1."""
        symbols = getattr(condition, "free_symbols", ())
        ranges = {symbol: self._symbol_ranges[symbol] for symbol in symbols if symbol in self._symbol_ranges}
        if not symbols or bound_sympy(condition, ranges).is_singleton():
            return
        if any(map(is_from_data, symbols)):
            if (condition if answer else sympy.Not(condition)) in map(self.resolve, asserted(self._exported.program)):
                return  # forward has asked it before, and each step checks that answer
            error = UnsupportedError("forward branches on data, which a graph does not know")
            error.of_sizes_and_data = True
            raise error
        larger = {symbol: known & ValueRanges(2, int_oo) for symbol, known in ranges.items() if known.upper >= 2}
        if bound_sympy(condition, {**ranges, **larger}).is_singleton():
            with contextlib.suppress(NeedsConstants):
                self.add_guard(condition if answer else sympy.Not(condition))

    def add_guard(self, expression):
        expression = self.resolve(expression)
        if expression in (True, sympy.true):
            return
        self._add_guard(self.text(expression))

    def require(self, size):
        """A guard that this is no less than 0, unless the ranges of the symbols say so."""
        size = self.resolve(size)
        if isinstance(size, int) or size in self._required:
            return
        self._required.add(size)
        if self.is_data(size):
            return  # a step that finds it less than 0 fails
        if bound_sympy(size, self._symbol_ranges).lower < 0:
            self._add_guard(f"{self.text(size)} >= 0")

    def _add_guard(self, text):
        if all(guard.text != text for guard in self.guards):
            self.guards.append(Guard(text))


def _is_product_and_number(difference):
    """Of `height*width == 16`, as `x.view(16)` asks: no size follows from the others."""
    terms = sympy.Add.make_args(sympy.expand(difference))
    return len(terms) == 2 and any(term.is_Integer for term in terms) and difference.is_polynomial()


def asserted(program):
    """The conditions that a program asserts."""
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if node.target is torch.ops.aten._assert_scalar.default and isinstance(node.args[0], torch.fx.Node):
                condition = node.args[0].meta.get("val")
                if isinstance(condition, torch.SymBool):
                    yield condition


_CLASS_LOSSES = (
    aten.cross_entropy_loss.default,
    aten.nll_loss.default,
    aten.nll_loss_nd.default,
    aten.nll_loss2d.default,
)
_SLICE_WRITERS = (aten.index_add.default, aten.index_copy.default)


def sizes_taken_as_one(program):
    """(size, size) of tensors that a call takes as one: the exporter does not ask whether they are."""
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target in _CLASS_LOSSES:
            scores, labels = (argument.meta["val"] for argument in node.args[:2])
            if labels.dim() == scores.dim() - 1 and not labels.is_floating_point():
                sizes = list(scores.shape)
                sizes.pop(min(1, scores.dim() - 1))
                yield from zip(sizes, labels.shape, strict=True)
        elif node.target in _SLICE_WRITERS:
            tensor, index, slices = (node.args[position].meta["val"] for position in (0, 2, 3))
            if tensor.dim() == slices.dim() > 0:
                sizes = list(tensor.shape)
                sizes[node.args[1]] = index.numel()
                yield from zip(sizes, slices.shape, strict=True)


def _meet(first, second):
    high = _smaller(first[1], second[1])
    return high is None or max(first[0], second[0]) <= high


def _smaller(first, second):
    return min((bound for bound in (first, second) if bound is not None), default=None)
