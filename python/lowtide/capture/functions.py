"""Custom torch.autograd.Functions as single nodes: torch.export would trace their forward and lose their backward."""

import ast
import contextlib
import inspect
import textwrap
import threading
from dataclasses import dataclass, field

import torch
import torch.utils._pytree as pytree

from lowtide.errors import UnsupportedError

_OWN = ("torch._", "torch.utils.checkpoint", "torch.distributed", "torch.nn.")
_tracing = threading.local()  # .table: the FunctionTable of the export that this thread runs


@dataclass(frozen=True)
class Given:
    """Stands in an argument for what each call brings: a tensor (the node's operand) or a size."""

    kind: str  # "tensor" or "size"
    index: int


@dataclass
class FunctionCall:
    """One `Function.apply` of a captured graph."""

    function: type
    arguments: list  # plain objects as they are; a container that holds tensors: (leaves with Given, spec) in _Tree
    needs_input_grad: tuple
    autocast: tuple  # (enabled, dtype) around it
    dirty: tuple = ()  # operands that forward changes in place
    # Per output: ("tensor", place among the node's outputs, differentiable), ("dirty", the same place, operand) or
    # ("value", the object itself)
    outputs: list = field(default_factory=list)
    single: bool = True

    @property
    def name(self):
        return f"{self.function.__module__}.{self.function.__qualname__}"

    def filled(self, tensors, sizes=()):
        """The arguments of `apply`."""
        given = {"tensor": tensors, "size": sizes}

        def fill(item):
            if isinstance(item, Given):
                return given[item.kind][item.index]
            return pytree.tree_unflatten([fill(leaf) for leaf in item.leaves], item.spec) if _is_tree(item) else item

        return [fill(argument) for argument in self.arguments]

    def trace(self, tensors, sizes):
        """Runs forward on fake tensors: the outputs' types, and what it marks."""
        context = _Context(self.function, self.needs_input_grad)
        arguments = self.filled(tensors, sizes)
        versions = [tensor._version for tensor in tensors]
        with torch.no_grad(), self.in_autocast():
            if _has_setup_context(self.function):
                result = self.function.forward(*arguments)
                self.function.setup_context(context, tuple(arguments), result)
            else:
                result = self.function.forward(context, *arguments)
        self.dirty = tuple(index for index, tensor in enumerate(tensors) if _holds(context.dirty_tensors, tensor))
        for index, (tensor, version) in enumerate(zip(tensors, versions, strict=True)):
            if tensor._version != version and index not in self.dirty:
                raise UnsupportedError(f"{self.name} changes an input in place without ctx.mark_dirty")
        return self._note_outputs(context, tensors, result)

    def _note_outputs(self, context, tensors, result):
        self.single = not isinstance(result, tuple)
        self.outputs, found = [], []
        for item in [result] if self.single else result:
            if not isinstance(item, torch.Tensor):
                if any(isinstance(leaf, torch.Tensor | torch.SymInt) for leaf in pytree.tree_leaves(item)):
                    raise UnsupportedError(f"{self.name} returns a container of tensors or a symbolic size")
                self.outputs.append(("value", item))
                continue
            operand = next((index for index in self.dirty if tensors[index] is item), None)
            if operand is not None:
                self.outputs.append(("dirty", len(found), operand))
            else:
                self.outputs.append(("tensor", len(found), not _holds(context.non_differentiable, item)))
            # An operator may return neither its input nor a view of it.
            found.append(torch.empty_like(item))
        if len({operand for kind, *_, operand in self.outputs if kind == "dirty"}) < len(self.dirty):
            raise UnsupportedError(f"{self.name} marks an input dirty without returning it")
        return found

    def traced_outputs(self, tensors, found):
        """What `apply` returns while tracing, from the node's outputs; inputs that it changes get their new values."""
        results = []
        for kind, *rest in self.outputs:
            if kind == "value":
                results.append(rest[0])
            elif kind == "dirty":
                results.append(tensors[rest[1]].copy_(found[rest[0]]))
            else:
                results.append(found[rest[0]] if rest[1] else found[rest[0]].detach())
        return results[0] if self.single else tuple(results)

    def in_autocast(self):
        enabled, dtype = self.autocast
        return torch.autocast("cpu", dtype=dtype, enabled=enabled)


@dataclass
class _Tree:
    leaves: list
    spec: pytree.TreeSpec


def _is_tree(item):
    return isinstance(item, _Tree)


def _holds(tensors, tensor):
    return any(item is tensor for item in tensors)


class _Context(torch.autograd.function.FunctionCtx):
    """Stands in for autograd's ctx while types are found."""

    def __init__(self, function, needs_input_grad):
        self._forward_cls = function
        self.needs_input_grad = needs_input_grad
        self.to_save = self.dirty_tensors = self.non_differentiable = ()

    @property
    def saved_tensors(self):
        return self.to_save


class FunctionTable(list):
    """The custom functions of one captured graph; a PythonOp node's `call` is an index into it."""

    checkpoints = 0  # calls of torch.utils.checkpoint, of both kinds: inlined
    inside = False  # of a forward, whose own calls of functions are part of it


_library = torch.library.Library("lowtide", "FRAGMENT")
_library.define("python_op(Tensor[] tensors, SymInt[] sizes, int call) -> Tensor[]")
# Users' functions may do more than compute their outputs.
torch.fx.node.has_side_effect(torch.ops.lowtide.python_op.default)


@torch.library.register_fake("lowtide::python_op", lib=_library)
def _trace_python_op(tensors, sizes, call):
    table = _tracing.table
    table.inside = True
    try:
        return table[call].trace(tensors, sizes)
    finally:
        table.inside = False


@contextlib.contextmanager
def functions_as_nodes():
    """While active, `Function.apply` of users' classes makes one node; yields the table of these calls."""
    table = FunctionTable()
    original = torch.autograd.Function.__dict__["apply"]

    def apply(cls, *arguments, **keywords):
        if cls.__name__ == "CheckpointFunction" and cls.__module__ == "torch.utils.checkpoint":
            # Reentrant checkpoint runs its function without gradients; what to recompute is the planner's choice.
            table.checkpoints += 1
            run, _, *rest = arguments
            return run(*rest)
        if _has_setup_context(cls):
            bound = inspect.signature(cls.forward).bind(*arguments, **keywords)
            bound.apply_defaults()
            arguments, keywords = bound.args, {}
        is_ours = not cls.__module__.startswith(_OWN) and getattr(_tracing, "table", None) is table
        if not is_ours or keywords or table.inside:
            return original.__get__(None, cls)(*arguments, **keywords)
        return _add_call(table, cls, arguments)

    not_reentrant = torch.utils.checkpoint._checkpoint_without_reentrant_generator

    def counted(*arguments, **keywords):
        # Leaves its work in the graph by itself.
        if getattr(_tracing, "table", None) is table:
            table.checkpoints += 1
        return not_reentrant(*arguments, **keywords)

    torch.utils.checkpoint._checkpoint_without_reentrant_generator = counted
    torch.autograd.Function.apply = classmethod(apply)
    outer, _tracing.table = getattr(_tracing, "table", None), table
    try:
        yield table
    finally:
        _tracing.table = outer
        torch.autograd.Function.apply = original
        torch.utils.checkpoint._checkpoint_without_reentrant_generator = not_reentrant


def _add_call(table, function, arguments):
    tensors, sizes, operands = [], [], []
    without_gradient = _inputs_without_gradient(function, len(arguments))

    def note(value, operand):
        if isinstance(value, torch.SymInt):
            sizes.append(value)
            return Given("size", len(sizes) - 1)
        tensors.append(value)
        operands.append(operand)
        return Given("tensor", len(tensors) - 1)

    noted = []
    for index, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor):
            noted.append(note(argument, argument.detach() if index in without_gradient else argument))
        elif isinstance(argument, torch.SymInt):
            noted.append(note(argument, None))
        else:
            noted.append(_note_container(argument, note))
    needs_input_grad = tuple(isinstance(argument, torch.Tensor) and argument.requires_grad for argument in arguments)
    autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    call = FunctionCall(function, noted, needs_input_grad, autocast)
    table.append(call)
    found = torch.ops.lowtide.python_op(operands, sizes, len(table) - 1)
    return call.traced_outputs(tensors, found)


def _note_container(argument, note):
    """A plain object stays itself; one that holds tensors or sizes is taken apart."""
    leaves, spec = pytree.tree_flatten(argument)
    if not any(isinstance(leaf, torch.Tensor | torch.SymInt) for leaf in leaves):
        if any(isinstance(leaf, torch.SymFloat | torch.SymBool) for leaf in leaves):
            raise UnsupportedError("a custom function takes a number that is computed from sizes")
        return argument
    # PyTorch gives no gradient to tensors in containers.
    return _Tree(
        [
            note(leaf, leaf.detach() if isinstance(leaf, torch.Tensor) else None)
            if isinstance(leaf, torch.Tensor | torch.SymInt)
            else leaf
            for leaf in leaves
        ],
        spec,
    )


def _has_setup_context(function):
    return function.setup_context is not torch.autograd.Function.setup_context


def _inputs_without_gradient(function, count):
    """Arguments in whose place every `return` of backward has a literal None: then PyTorch's gradient is None too, not
    zeros. Empty where the source cannot tell, or no argument would be left with a gradient."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function.backward)))
    except (OSError, TypeError, SyntaxError, AttributeError):
        return set()
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        return set()
    always = set(range(count))
    for node in _returns_of(definition):
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        if any(isinstance(value, ast.Starred) for value in values):
            return set()
        always &= {
            index for index, value in enumerate(values) if isinstance(value, ast.Constant) and value.value is None
        }
    return always if len(always) < count else set()


def _returns_of(definition):
    """The return statements of a function, not of functions inside of it."""
    pending = list(definition.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Return):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            pending.extend(ast.iter_child_nodes(node))
