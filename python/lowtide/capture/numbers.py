"""Numbers that change from call to call: 0-d inputs of a graph, which PyTorch's type promotion takes for what they are.

Forward gets a symbolic number, as `item()` makes it, so the exporter promotes types as with a Python number and refuses
code that asks for the number itself. What forward computes from it becomes arithmetic on 0-d tensors of f64 or i64:
Python's own precision. Code may still tell a symbolic number from Python's (isinstance): an export with numbers counts
only if it is, for one value of them, the export with that value as a constant.
"""

import math
import operator
from dataclasses import dataclass

import torch
import torch.utils._pytree as pytree

from lowtide.errors import UnsupportedError
from lowtide.guards.comparisons import FUNCTIONS
from lowtide.guards.unread import is_unread
from lowtide.guards.values import dtype_name

from .functions import Given

_SYMBOLIC = (torch.SymInt, torch.SymFloat)
_HALVES = (torch.float16, torch.bfloat16)

# Arguments of ATen ops that may be such a number: what src/lower takes as a tensor in their place.
_BINARY = (
    "add sub subtract mul multiply div divide true_divide floor_divide remainder fmod eq ne lt le gt ge rsub "
    "bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__"
)
TAKES = {
    **{name: ("self", "other", "alpha") for word in _BINARY.split() for name in (word, f"{word}_")},
    "pow": ("self", "exponent"),
    "where": ("self", "other"),
    "masked_fill": ("value",),
    "masked_fill_": ("value",),
    **{name: ("min", "max") for name in ("clamp", "clamp_", "clamp_min", "clamp_min_", "clamp_max", "clamp_max_")},
    "lerp": ("weight",),
    **{name: ("value",) for name in ("addcmul", "addcmul_", "addcdiv", "addcdiv_")},
    "full": ("fill_value",),
    "full_like": ("fill_value",),
    "new_full": ("fill_value",),
    "fill": ("value",),
    "fill_": ("value",),
    "scalar_tensor": ("s",),
}

# Those that PyTorch's kernels of 16 bits take as they are. Any other is rounded to 16 bits before.
_UNROUNDED = {
    **{name: "other" for word in "mul multiply div divide true_divide".split() for name in (word, f"{word}_")},
    **{name: "value" for name in ("addcmul", "addcmul_", "addcdiv", "addcdiv_")},
    "lerp": "weight",
}

_MAKE_NOTHING = ("aten._assert_", "aten.promote_types")

# Python's operators → ATen ops on 0-d tensors that give the same numbers, for (floats, ints).
_OPERATORS = {
    operator.add: ("aten::add.Tensor", "aten::add.Tensor"),
    operator.sub: ("aten::sub.Tensor", "aten::sub.Tensor"),
    operator.mul: ("aten::mul.Tensor", "aten::mul.Tensor"),
    operator.truediv: ("aten::div.Tensor", None),
    operator.pow: ("aten::pow.Tensor_Tensor", None),
    operator.floordiv: (None, "aten::floor_divide.default"),
    operator.mod: (None, "aten::remainder.Tensor"),
    operator.neg: ("aten::neg.default", "aten::neg.default"),
    operator.abs: ("aten::abs.default", "aten::abs.default"),
    abs: ("aten::abs.default", "aten::abs.default"),
    torch.sym_max: ("aten::maximum.default", "aten::maximum.default"),
    torch.sym_min: ("aten::minimum.default", "aten::minimum.default"),
}


_ROUNDED = {math.floor: "floor", math.ceil: "ceil", math.trunc: "trunc", round: "round"}  # to whole numbers


@dataclass(frozen=True)
class Item:
    """A number among a module's outputs, which the graph computes as a 0-d tensor."""


def as_tensor(number):
    return torch.scalar_tensor(number, dtype=torch.float64 if isinstance(number, torch.SymFloat) else torch.int64)


def depends_on(leaf, numbers):
    """Whether it is a whole number that is computed from some of these."""
    if not isinstance(leaf, torch.SymInt):
        return False
    symbols = [number.node.expr.free_symbols for number in numbers if isinstance(number, torch.SymInt)]
    return any(not leaf.node.expr.free_symbols.isdisjoint(each) for each in symbols)


def is_number(node):
    """A size where a tensor may stand: x + x.shape[0]."""
    return isinstance(node, torch.fx.Node) and isinstance(
        node.meta.get("val"), int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool
    )


def is_item(node):
    return node.target in (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)


class Numbers:
    """The numbers of one graph that is being imported."""

    def __init__(self, graph, sizes, origin):
        self._graph, self._sizes, self._origin = graph, sizes, origin
        self._symbols = set()
        self._values = {}  # FX node → value number of a 0-d f64 or i64 tensor

    def add(self, node, value):
        """`node` is the number in the 0-d tensor `value`."""
        self._symbols |= node.meta["val"].node.expr.free_symbols
        self._values[node] = value

    def read(self, node, tensor):
        """What item() reads of a tensor, as a 0-d tensor without a gradient."""
        output = (f"{node.name}_read", self._graph.type_of(tensor)[0], [])
        for target, attrs in (("aten::reshape.default", {"shape": ("ints", [])}), ("aten::detach.default", {})):
            (tensor,) = self._graph.add_aten(target, [tensor], ["self"], [output], attrs, *self._origin(node))
        is_float = isinstance(node.meta["val"], torch.SymFloat)
        return self._cast(tensor, torch.float64 if is_float else torch.int64, node)

    def alias(self, node, other):
        if isinstance(other, torch.fx.Node) and self.holds(other):
            self._values[node] = self._value(other)

    def holds(self, argument):
        """Whether an argument of a node depends on such a number, or is a real one that depends on a size from data."""
        value = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else None
        if isinstance(value, torch.SymFloat) and self._sizes.is_data(value):
            return True
        return isinstance(value, _SYMBOLIC) and not self._symbols.isdisjoint(value.node.expr.free_symbols)

    def is_operand(self, node, name, value):
        """Whether an argument is a number that becomes an operand, and no size."""
        if not self.holds(value):
            return self._is_of_sizes(value) and isinstance(node.meta["val"], torch.Tensor) and self.takes(node, name)
        return self.takes(node, name) or not self._sizes.is_data(value.meta["val"])

    def _is_of_sizes(self, argument):
        """Whether it is a real number that sizes make."""
        value = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else None
        return isinstance(value, torch.SymFloat) and bool(getattr(self._sizes.resolve(value), "free_symbols", ()))

    def takes(self, node, name):
        return node.target.namespace == "aten" and name in TAKES.get(node.target._opname, ())

    def operand(self, argument, node, name):
        """The number as a 0-d tensor for the argument `name` of an ATen op, of the dtype that the op computes in."""
        op = node.target._opname
        if not self.takes(node, name):
            raise UnsupportedError(f"`{name}` is a number that changes")
        result, is_float = node.meta["val"], isinstance(argument.meta["val"], torch.SymFloat)
        if not isinstance(result, torch.Tensor):
            raise UnsupportedError(f"`{name}` is a number that changes")
        dtype = result.dtype
        if dtype is torch.bool:
            tensors = [other.meta["val"] for other in node.all_input_nodes]
            tensor = next(tensor for tensor in tensors if isinstance(tensor, torch.Tensor))
            dtype = torch.result_type(tensor, 1.0 if is_float else 1)
        if op == "pow" and not dtype.is_floating_point:
            raise UnsupportedError("an integer power is a number that changes")
        if dtype in _HALVES and _UNROUNDED.get(op) == name:
            return self._value(argument)
        return self._cast(self._value(argument), dtype, node)

    # ---- 0-d tensors

    def _value(self, argument):
        if argument not in self._values:
            self._values[argument] = self._compute(argument)
        return self._values[argument]

    def _compute(self, node):
        value = node.meta["val"]
        if node.target is torch.sym_float:
            return self._cast(self._value(node.args[0]), torch.float64, node)
        if isinstance(value, torch.SymInt) and not self.holds(node):
            return self._constant(self._sizes.dim(value), torch.int64, node)
        is_float = isinstance(value, torch.SymFloat)
        if node.target in _ROUNDED and len(node.args) == 1 and not is_float:
            number = self._operand_of(node.args[0], torch.float64, node)
            number = self._emit(f"aten::{_ROUNDED[node.target]}.default", [number], ["self"], torch.float64, node, {})
            return self._cast(number, torch.int64, node)
        target = _OPERATORS.get(node.target, (None, None))[0 if is_float else 1]
        if target is None or node.kwargs:
            name = getattr(node.target, "__name__", node.target)
            raise UnsupportedError(f"forward computes {name} of a number that changes")
        dtype = torch.float64 if is_float else torch.int64
        operands = [self._operand_of(argument, dtype, node) for argument in node.args]
        names = ["self", "exponent" if node.target is operator.pow else "other"][: len(operands)]
        return self._emit(target, operands, names, dtype, node, {})

    def _operand_of(self, argument, dtype, node):
        if not isinstance(argument, torch.fx.Node):
            return self._constant(argument, dtype, node)
        return self._cast(self._value(argument), dtype, node)

    def _constant(self, value, dtype, node):
        """A 0-d tensor of a plain number, or of a size, which is text in the graph's grammar."""
        kind = "float" if dtype is torch.float64 else "int"
        return self._emit("aten::scalar_tensor.default", [], [], dtype, node, {"s": (kind, value)})

    def _cast(self, value, dtype, node):
        if self._graph.type_of(value)[0] == dtype_name(dtype):
            return value
        return self._emit("aten::to.dtype", [value], ["self"], dtype, node, {"dtype": ("dtype", dtype_name(dtype))})

    def _emit(self, target, operands, names, dtype, node, attrs):
        output = (f"{node.name}_number", dtype_name(dtype), [])
        return self._graph.add_aten(target, operands, names, [output], attrs, *self._origin(node))[0]


# ---- the same export but for numbers


def difference(constant, captured, values):
    """How `captured`, Exported with numbers, is another program than the Exported `constant` if the numbers have these
    values, {name: value}; None where it is none."""
    try:
        ours, theirs = _Reading(captured, values), _Reading(constant, {})
    except (ArithmeticError, TypeError, ValueError) as error:  # of Python's operators with these values
        return f"{type(error).__name__}: {error}, for {values}"
    for one, other in zip(ours.steps, theirs.steps, strict=False):
        if one != other:
            return f"forward goes another way with a symbolic number: {_words(one)}, with a constant: {_words(other)}"
    if len(ours.steps) != len(theirs.steps):
        return "forward goes another way with a symbolic number than with a constant"
    if captured.output_structure != constant.output_structure or not _same_outputs(
        _outputs(captured, ours), _outputs(constant, theirs), values
    ):
        return "the outputs are others with a symbolic number than with a constant"
    return None


def _words(step):
    plain = [repr(leaf) for leaf in step[1] if isinstance(leaf, _Plain)] if len(step) > 2 else []
    return f"{step[0]} with {', '.join(plain) or 'no number'}"


def _outputs(exported, reading):
    """What an export returns: what stands for each tensor, and for each other leaf itself."""
    results = iter(reading.results[0])
    found = []
    for leaf, is_tensor in zip(exported.output_leaves, exported.output_is_tensor, strict=True):
        made = next(results) if is_tensor else leaf
        found.append(made[1][0].value if isinstance(leaf, Item) and _is_plain_number(made) else made)
    return [*found, *results]


def _is_plain_number(made):
    return made[0] == "tensor of" and isinstance(made[1][0], _Plain)


def _same_outputs(ours, theirs, values):
    return len(ours) == len(theirs) and all(_same_leaf(*pair, values) for pair in zip(ours, theirs, strict=True))


def _same_leaf(one, other, values):
    if isinstance(one, tuple) and one[0] == "tensor of" and isinstance(other, torch.SymInt):
        return True  # of a number and sizes, as of sizes alone
    if isinstance(one, tuple) or isinstance(other, tuple):
        return one == other
    if is_unread(one):
        return one.name == other.name if is_unread(other) else values.get(one.name) == other
    return type(one) is type(other) and (isinstance(one, torch.SymInt) or repr(one) == repr(other))


class _Reading:
    """An exported program as values to compare: `steps`, a tuple (target, arguments, types of the results) per call
    that makes tensors, and `results`. Sizes and numbers are not steps but stand in arguments as they are computed."""

    def __init__(self, exported, values):
        program = exported.program
        self._values, self._functions, self.steps = values, exported.functions, []
        self._constants = program.constants
        names = iter(exported.names)
        nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
        arguments = [
            ("input", next(names)) if spec.kind.name == "USER_INPUT" else ("state", spec.kind.name, spec.target)
            for spec in program.graph_signature.input_specs
        ]
        self.results = self._block(program.graph_module, dict(zip(nodes, arguments, strict=True)))

    def _block(self, graph_module, seen):
        for node in graph_module.graph.nodes:
            if node.op == "get_attr":
                held = operator.attrgetter(node.target)(graph_module)
                seen[node] = ("module", held) if isinstance(held, torch.nn.Module) else _Plain(held)
            elif node.op == "output":
                return self._read(node.args[0], seen)
            elif node.op == "call_function" and not str(node.target).startswith(_MAKE_NOTHING):
                seen[node] = self._call(node, self._read((node.args, node.kwargs), seen))

    def _read(self, tree, seen):
        leaves, structure = pytree.tree_flatten(tree)
        found = [seen[leaf] if isinstance(leaf, torch.fx.Node) else _Plain(leaf) for leaf in leaves]
        return tuple(found), str(structure)

    def _call(self, node, arguments):
        leaves, _ = arguments
        if is_item(node) and leaves[0][0] == "input" and leaves[0][1] in self._values:
            return _Plain(self._values[leaves[0][1]])
        if is_item(node) and _is_plain_number(leaves[0]):
            return leaves[0][1][0]
        value = node.meta.get("val")
        if isinstance(value, int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool):
            if isinstance(value, torch.SymInt) and value.node.expr.is_number:  # a size that is a constant after all
                return _Plain(int(value.node.expr))
            if all(isinstance(leaf, _Plain) for leaf in leaves):
                return _Plain(node.target(*(leaf.value for leaf in leaves)))
            if node.target is operator.add and _Plain(0) in leaves:  # which the exporter leaves out
                return leaves[1 - leaves.index(_Plain(0))]
            return ("computed", str(node.target), arguments)
        if (made := self._of_a_number(node, leaves)) is not None:
            return made
        if node.target is operator.getitem:
            return ("part", leaves)
        if node.target is torch.ops.aten.scalar_tensor.default:
            return ("tensor of", *arguments)
        if node.target is torch.ops.lowtide.python_op.default:
            return self._step("call of a function", self._function(leaves), (), value)
        if (made := self._of_numbers(node, leaves)) is not None:
            return made
        body = next((leaf[1] for leaf in leaves if isinstance(leaf, tuple) and leaf[0] == "module"), None)
        if body is None:
            return self._step(str(node.target), leaves, arguments[1], value)
        formal = [child for child in body.graph.nodes if child.op == "placeholder"]
        given = leaves[len(leaves) - len(formal) :]
        rest = [leaf for leaf in leaves[: len(leaves) - len(formal)] if not isinstance(leaf, tuple)]
        seen = self._step(f"region {node.target}", rest, (), value)
        self.steps.append(("results of the region", self._block(body, dict(zip(formal, given, strict=True)))))
        return seen

    def _of_a_number(self, node, leaves):
        """A function of Python's math of a plain number, as a 0-d tensor; else None."""
        name = str(node.target).removeprefix("aten.").removesuffix(".default")
        if name not in FUNCTIONS or not _is_plain_number(leaves[0]):
            return None
        (number, *options), structure = leaves[0][1:]
        return "tensor of", (_Plain(getattr(math, name)(number.value)), *options), structure

    def _of_numbers(self, node, leaves):
        """What torch.tensor makes of plain numbers, else None: of constants a copy of a tensor, of symbolic ones a
        stack of 0-d tensors."""
        if node.target is torch.ops.aten.lift_fresh_copy.default and leaves[0][:2] == ("state", "CONSTANT_TENSOR"):
            return ("numbers", _Plain(self._constants[leaves[0][2]].tolist()))
        if node.target is torch.ops.aten.to.device:
            return _numbers(leaves[0], node)
        if node.target is torch.ops.aten.stack.default and len(node.args) == 1:
            parts = [_numbers(leaf, node) for leaf in leaves]
            return None if None in parts else ("numbers", _Plain([part[1].value for part in parts]))
        return None

    def _step(self, target, leaves, structure, value):
        types = [(leaf.dtype, leaf.dim()) for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        self.steps.append((target, list(leaves), structure, types))
        return ("step", len(self.steps) - 1)

    def _function(self, leaves):
        """What a custom function is called with: operands, sizes, its number → its arguments."""
        record = self._functions[leaves[-1].value]
        operands, sizes = leaves[: record.operands], leaves[record.operands : -1]
        found = [_Plain(record.function)]
        for argument in pytree.tree_leaves([list(part) for part in map(record.parts, record.arguments)]):
            if not isinstance(argument, Given):
                found.append(_Plain(argument))
            elif argument.kind == "number":
                found.append(operands[argument.index][1][0])  # of the number in ("tensor of", …)
            else:
                found.append((operands if argument.kind == "tensor" else sizes)[argument.index])
        return found


def _numbers(argument, node):
    """An argument of `node`, whose result has the same dtype, as a tensor of plain numbers; None where it is none."""
    if isinstance(argument, tuple) and argument[0] == "tensor of" and isinstance(argument[1][0], _Plain):
        return ("numbers", _Plain(torch.tensor(argument[1][0].value, dtype=node.meta["val"].dtype).item()))
    return argument if isinstance(argument, tuple) and argument[0] == "numbers" else None


class _Plain:
    """A plain value, equal to one of the same type that prints the same: 0.0 and -0.0 are two, nan is one."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, _Plain) and type(self.value) is type(other.value) and repr(self) == repr(other)

    def __repr__(self):
        return repr(self.value)

    __hash__ = None
