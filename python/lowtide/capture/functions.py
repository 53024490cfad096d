"""Custom torch.autograd.Functions as single nodes: torch.export would trace their forward and lose their backward."""

import ast
import contextlib
import inspect
import textwrap
import threading
from dataclasses import dataclass, field

import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lowtide.distributed import computes
from lowtide.errors import UnsupportedError
from lowtide.guards.data import memory_of
from lowtide.guards.unread import is_unread

from .formulas import computed_op
from .real_trace import trace_for_real
from .reentrant_checkpoints import ReentrantCheckpoints

_OWN = ("torch._", "torch.utils.checkpoint", "torch.distributed", "torch.nn.")
_IN_THE_GRAPH = ("torch._library.autograd", "torch._higher_order_ops.")  # of ops and regions
_tracing = threading.local()  # .table: the FunctionTable of the export that this thread runs


@dataclass(frozen=True)
class Given:
    """Stands in an argument for what each call brings: a tensor (the node's operand), a size, or a number that is in
    an operand."""

    kind: str  # "tensor", "size" or "number"
    index: int


@dataclass
class FunctionCall:
    """One `Function.apply` of a captured graph."""

    function: type
    arguments: list  # plain objects as they are; a container that holds tensors: (leaves with Given, spec) in _Tree
    needs_input_grad: tuple
    autocast: tuple  # (enabled, dtype) around it
    dirty: tuple = ()  # operands that forward changes in place
    # Per output: ("tensor", place among the node's outputs, differentiable), ("dirty", the same two, operand) or
    # ("value", the object itself). After them ("written", the same three as "dirty") per operand that forward changes
    # without saying so: its gradient goes past the function.
    outputs: list = field(default_factory=list)
    single: bool = True
    operands: int = 0  # of the node
    symbols: dict = field(default_factory=dict)  # while tracing: operand → the symbolic number in it

    @property
    def name(self):
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @property
    def changed(self):
        """Operands that forward changes in place."""
        return [*self.dirty, *(rest[2] for kind, *rest in self.outputs if kind == "written")]

    @property
    def computes(self):
        """The op that this call is known to be, forward and backward; None: a call that nobody can look into."""
        takes_one = [getattr(argument, "kind", None) for argument in self.arguments] == ["tensor"]
        gives_one = self.single and self.outputs == [("tensor", 0, True)]
        is_plain = takes_one and gives_one and not _has_setup_context(self.function)
        return computed_op(self.function.forward, self.function.backward) if is_plain else None

    def filled(self, tensors, sizes=()):
        """The arguments of `apply`."""
        given = {"tensor": tensors, "size": sizes, "number": _Numbers(tensors, self.symbols)}
        return [_filled(argument, given) for argument in self.arguments]

    def parts(self, argument):
        """The leaves of an argument, Given among them."""
        return argument.leaves if isinstance(argument, _Tree) else [argument]

    def trace(self, tensors, sizes):
        """Runs forward on fake tensors: the outputs' types, and what it marks."""
        try:
            return self._run(tensors, sizes)
        except UnsupportedError:
            raise
        except Exception as error:
            return trace_for_real(self._run, tensors, sizes, error)

    def _run(self, tensors, sizes):
        context = _Context(self.function, self.needs_input_grad)
        arguments = self.filled(tensors, sizes)
        writes = _Writes(_tracing.table.observation)
        with torch.no_grad(), self.in_autocast(), writes:
            if _has_setup_context(self.function):
                result = self.function.forward(*arguments)
                self.function.setup_context(context, tuple(arguments), result)
            else:
                result = self.function.forward(context, *arguments)
        self.dirty = tuple(index for index, tensor in enumerate(tensors) if _holds(context.dirty_tensors, tensor))
        unmarked = writes.storages - {memory_of(tensors[index]) for index in self.dirty}
        written = [index for index, tensor in enumerate(tensors) if memory_of(tensor) in unmarked]
        if len({memory_of(tensors[index]) for index in written}) < len(written):
            raise self._refusal_of_write()  # each would see what is written into the other
        found = self._note_outputs(context, tensors, result)
        for index in written:
            self.outputs.append(("written", len(found), True, index))
            found.append(torch.empty_like(tensors[index]))
        return found

    def _refusal_of_write(self):
        return UnsupportedError(f"{self.name} changes an input in place without ctx.mark_dirty")

    def _note_outputs(self, context, tensors, result):
        self.single = not isinstance(result, tuple)
        self.outputs, found = [], []
        for item in [result] if self.single else result:
            if not isinstance(item, torch.Tensor):
                symbolic = torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool
                if any(isinstance(leaf, symbolic) for leaf in pytree.tree_leaves(item)):
                    raise UnsupportedError(f"{self.name} returns a container of tensors, or a symbolic size or number")
                self.outputs.append(("value", item))
                continue
            differentiable = not _holds(context.non_differentiable, item)
            operand = next((index for index in self.dirty if tensors[index] is item), None)
            if operand is not None:
                self.outputs.append(("dirty", len(found), differentiable, operand))
            else:
                self.outputs.append(("tensor", len(found), differentiable))
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
                continue
            place, differentiable = rest[:2]
            value = found[place] if differentiable else found[place].detach()
            if kind == "written":
                if tensors[rest[2]].is_leaf and tensors[rest[2]].requires_grad:
                    raise self._refusal_of_write()
                tensors[rest[2]].copy_(value)
                continue
            results.append(tensors[rest[2]].copy_(value) if kind == "dirty" else value)
        return results[0] if self.single else tuple(results)

    def in_autocast(self):
        enabled, dtype = self.autocast
        return torch.autocast("cpu", dtype=dtype, enabled=enabled)


@dataclass
class _Tree:
    leaves: list
    spec: pytree.TreeSpec


class _Numbers:
    def __init__(self, tensors, symbols):
        self._tensors, self._symbols = tensors, symbols

    def __getitem__(self, index):
        return self._symbols[index] if index in self._symbols else self._tensors[index].item()


# No function inside of `filled`: one that calls itself is a cycle, which would keep the tensors until a collection.
def _filled(item, given):
    if isinstance(item, Given):
        return given[item.kind][item.index]
    if isinstance(item, _Tree):
        return pytree.tree_unflatten([_filled(leaf, given) for leaf in item.leaves], item.spec)
    return item


class _Writes(TorchDispatchMode):
    """The storages that ops write into. The observation hears of what they make."""

    def __init__(self, observation):
        super().__init__()
        self.storages, self._observation = set(), observation

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        arguments = zip(func._schema.arguments, args, strict=False)
        named = ((argument, (kwargs or {}).get(argument.name)) for argument in func._schema.arguments[len(args) :])
        for argument, value in (*arguments, *named):
            if argument.is_write:
                leaves = pytree.tree_leaves(value)
                self.storages |= {memory_of(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        if not any(result is value for value in args):  # written into
            self._observation.made(result)
        return result


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

    observation = None  # of the trace
    checkpoints = 0  # calls of torch.utils.checkpoint, of both kinds: inlined
    inside = False  # of a forward, whose own calls of functions are part of it
    regions = ()  # libraries of ops that are regions (regions_of_pytorch.py)

    def __init__(self, calls=()):
        super().__init__(calls)
        self.reentrant = ReentrantCheckpoints()


_library = torch.library.Library("lowtide", "FRAGMENT")
_library.define("python_op(Tensor[] tensors, SymInt[] sizes, int call) -> Tensor[]")
# Users' functions may do more than compute their outputs.
torch.fx.node.has_side_effect(torch.ops.lowtide.python_op.default)


@torch.library.register_fake("lowtide::python_op", lib=_library)
def _trace_python_op(tensors, sizes, call):
    table = _tracing.table
    table.inside = True
    try:
        with table.observation.aside():
            results = table[call].trace(tensors, sizes)
    finally:
        table.inside = False
    table.observation.made([*tensors, *results])
    return results


# `Function.apply` is a few checks and then its base's: there comes whatever is called, also by a method that was bound
# long before the export.
_BELOW_APPLY = torch.autograd.Function.__base__


@contextlib.contextmanager
def functions_as_nodes(observation, layouts=None):
    """While active, a call of a user's Function makes one node; yields the table of these calls. `layouts`: Layouts,
    which know PyTorch's functions for DTensors."""
    table = FunctionTable()
    table.observation = observation

    def apply(cls, *arguments):
        inlined = super(_BELOW_APPLY, cls).apply
        if getattr(_tracing, "table", None) is not table or table.inside:
            return inlined(*arguments)
        if cls is torch.utils.checkpoint.CheckpointFunction:
            table.checkpoints += 1
            observation.seen.asks_for_gradients = True
            return table.reentrant.run(arguments[0], arguments[2:])
        if (known := computes(cls)) is not None:
            return known(*arguments)
        if layouts is not None and (found := layouts.apply(cls, arguments)) is not NotImplemented:
            return found
        return inlined(*arguments) if cls.__module__.startswith(_OWN) else _add_call(table, cls, arguments)

    recomputing = torch.utils.checkpoint._checkpoint_hook

    def without_hooks(frame):
        """Around what a checkpoint that is not reentrant runs: what to recompute is the planner's choice."""
        if getattr(_tracing, "table", None) is not table:
            return recomputing(frame)
        table.checkpoints += 1
        return contextlib.nullcontext()

    torch.utils.checkpoint._checkpoint_hook = without_hooks
    _BELOW_APPLY.apply = classmethod(apply)
    outer, _tracing.table = getattr(_tracing, "table", None), table
    try:
        yield table
    finally:
        _tracing.table, table.observation = outer, None
        del _BELOW_APPLY.apply
        torch.utils.checkpoint._checkpoint_hook = recomputing


def refuse_inlined(outputs):
    """UnsupportedError where a Function ran within the trace of `outputs` and left its forward there, but not its
    backward."""
    if (table := getattr(_tracing, "table", None)) is not None:
        table.reentrant.refuse_escapes(outputs)
    pending = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    seen = set(pending)
    while pending:
        node = pending.pop()
        is_function = isinstance(node, torch.autograd.function.BackwardCFunction)
        if is_function and not node._forward_cls.__module__.startswith(_IN_THE_GRAPH):
            raise UnsupportedError(f"the backward of a custom autograd.Function cannot be captured: {node.name()}")
        found = {following for following, _ in node.next_functions if following is not None} - seen
        seen |= found
        pending.extend(found)


def _add_call(table, function, arguments):
    for string in filter(is_unread, pytree.tree_leaves(arguments)):
        string.refuse()  # the function reads what it likes
    tensors, sizes, operands, symbols = [], [], [], {}
    # PyTorch calls the backward of functions above such an argument all the same, with zeros.
    without_gradient = set() if table else _inputs_without_gradient(function, len(arguments))

    def note(value, operand=None):
        if _is_number(value):
            symbols[len(tensors)] = value
            dtype = torch.int64 if isinstance(value, torch.SymInt) else torch.float64
            operands.append(torch.scalar_tensor(value, dtype=dtype))
            tensors.append(operands[-1])
            return Given("number", len(tensors) - 1)
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
        elif isinstance(argument, torch.SymInt | torch.SymFloat):
            noted.append(note(argument))
        else:
            noted.append(_note_container(argument, note))
    needs_input_grad = tuple(isinstance(argument, torch.Tensor) and argument.requires_grad for argument in arguments)
    autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    call = FunctionCall(function, noted, needs_input_grad, autocast, operands=len(operands), symbols=symbols)
    table.append(call)
    found = torch.ops.lowtide.python_op(operands, sizes, len(table) - 1)
    symbols.clear()
    return call.traced_outputs(tensors, found)


def _is_number(value):
    """A float that is computed from sizes, or a number that changes from call to call: it has no hint."""
    return isinstance(value, torch.SymFloat) or (isinstance(value, torch.SymInt) and value.node.hint is None)


def _note_container(argument, note):
    """A plain object stays itself; one that holds tensors, sizes or numbers is taken apart."""
    leaves, spec = pytree.tree_flatten(argument)
    if any(isinstance(leaf, torch.SymBool) for leaf in leaves):
        raise UnsupportedError("a custom function takes a condition that is computed from sizes or numbers")
    if not any(isinstance(leaf, torch.Tensor | torch.SymInt | torch.SymFloat) for leaf in leaves):
        return argument
    # PyTorch gives no gradient to tensors in containers.
    return _Tree([_note_leaf(leaf, note) for leaf in leaves], spec)


def _note_leaf(leaf, note):
    if isinstance(leaf, torch.Tensor):
        return note(leaf, leaf.detach())
    return note(leaf) if isinstance(leaf, torch.SymInt | torch.SymFloat) else leaf


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
