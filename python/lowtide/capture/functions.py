"""Custom torch.autograd.Functions as single nodes: torch.export would trace their forward and lose their backward."""

import contextlib
import threading
from dataclasses import dataclass, field

import torch
import torch.utils._pytree as pytree

from lowtide.errors import UnsupportedError

_OWN = ("torch._", "torch.utils.checkpoint", "torch.distributed", "torch.nn.")
_tracing = threading.local()  # .table: the FunctionTable of the export that this thread runs


@dataclass
class FunctionCall:
    """One `Function.apply`: its class, and its arguments with None in the places of tensors."""

    function: type
    arguments: list
    is_tensor: list
    outputs: list = field(default_factory=list)  # per output: True for a tensor, else the value itself in a 1-tuple
    single: bool = True

    @property
    def name(self):
        return f"{self.function.__module__}.{self.function.__qualname__}"

    def with_tensors(self, tensors):
        rest = iter(tensors)
        return [
            next(rest) if is_tensor else argument
            for argument, is_tensor in zip(self.arguments, self.is_tensor, strict=True)
        ]

    def trace(self, tensors):
        """Runs forward on fake tensors for the outputs' types."""
        context = _Context(self.name)
        arguments = self.with_tensors(tensors)
        with torch.no_grad():
            if self.function.setup_context is torch.autograd.Function.setup_context:
                result = self.function.forward(context, *arguments)
            else:
                result = self.function.forward(*arguments)
                self.function.setup_context(context, tuple(arguments), result)
        self.single = not isinstance(result, tuple | list)
        results = [result] if self.single else list(result)
        self.outputs = [True if isinstance(item, torch.Tensor) else (item,) for item in results]
        # An operator may return neither its input nor a view of it.
        return [torch.empty_like(item) for item in results if isinstance(item, torch.Tensor)]

    def pack(self, tensors):
        rest = iter(tensors)
        results = [next(rest) if kind is True else kind[0] for kind in self.outputs]
        return results[0] if self.single else tuple(results)


class _Context:
    """Stands in for autograd's ctx while types are found."""

    def __init__(self, name):
        self._name = name
        self.needs_input_grad = _Always()
        self.saved_tensors = ()

    def save_for_backward(self, *tensors):
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors):
        pass

    def mark_dirty(self, *tensors):
        raise UnsupportedError(f"autograd.Function {self._name} marks an input dirty (changes it in place)")

    def mark_non_differentiable(self, *tensors):
        pass

    def set_materialize_grads(self, value):
        pass


class _Always:
    """needs_input_grad of which nothing is known yet: every input may need one."""

    def __getitem__(self, index):
        return True


class FunctionTable(list):
    """The custom functions of one captured graph; a PythonOp node's `call` is an index into it."""

    checkpoints = 0  # calls of torch.utils.checkpoint, of both kinds: inlined


_library = torch.library.Library("lowtide", "FRAGMENT")
_library.define("python_op(Tensor[] tensors, int call) -> Tensor[]")


@torch.library.register_fake("lowtide::python_op", lib=_library)
def _trace_python_op(tensors, call):
    return _tracing.table[call].trace(tensors)


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
        if cls.__module__.startswith(_OWN) or keywords or getattr(_tracing, "table", None) is not table:
            return original.__get__(None, cls)(*arguments, **keywords)
        is_tensor = [isinstance(argument, torch.Tensor) for argument in arguments]
        for argument, tensor in zip(arguments, is_tensor, strict=True):
            hidden = [leaf for leaf in pytree.tree_leaves(argument) if isinstance(leaf, torch.Tensor | torch.SymInt)]
            if hidden and not tensor:
                raise UnsupportedError(
                    f"autograd.Function {cls.__qualname__} takes a container of tensors or a symbolic size"
                )
        call = FunctionCall(
            cls, [None if tensor else value for value, tensor in zip(arguments, is_tensor, strict=True)], is_tensor
        )
        table.append(call)
        tensors = [value for value, tensor in zip(arguments, is_tensor, strict=True) if tensor]
        return call.pack(torch.ops.lowtide.python_op(tensors, len(table) - 1))

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
