"""Calls out of the engine: ATen ops without a lowering and custom autograd Functions, on PyTorch with its autograd."""

import contextlib
from collections import defaultdict

import torch
import torch.utils._pytree as pytree
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from lowtide.capture.operators import is_collective, overload_of, wait_for
from lowtide.distributed import Collectives
from lowtide.errors import UnsupportedError
from lowtide.guards.values import DTYPES

# Not a class's own `apply`, which has been passed when a call was captured.
_apply = torch.autograd.Function.apply.__func__
# Views of memory whose last dim has to lie in one piece. A copy that forward makes for that is none to the engine.
_OF_ROWS = ("aten::view_as_complex.default", "aten::view.dtype")
_TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


class CallHandler:
    """What a session calls. Tensors are views of the engine's memory; results are copied to the given outputs.

    A context is [edges of the outputs, leaves, what is tracked]: PyTorch's graph of one call, between views of the
    engine's memory. The plan keeps these bytes until the backward of the call.
    """

    def __init__(self, functions, groups=()):
        """`groups`: of processes, by the numbers that collectives of the graph give them."""
        self._functions, self._collectives = functions, Collectives(groups)
        self._overloads = {}
        self.parameters = {}  # address → one of the call that runs, which functions take itself, not as a view
        self.missing = set()  # (function call, argument) without a gradient, in the backward that runs or ran last
        self._inputs = defaultdict(_RetentionTracker)  # by function call: of what forward takes and makes
        self._gradients = defaultdict(_RetentionTracker)  # of what backward takes

    def forward(self, target, attrs, inputs, outputs, wants_context, needs_grad):
        if self._collectives.run(target, attrs, inputs, outputs):
            return None
        is_function = "operands" not in attrs
        tracker = self._inputs[attrs["call"]] if is_function else _RETAINS_NOTHING
        if is_function and self.parameters:
            self._put_parameters(self._functions[attrs["call"]], inputs)
        given, tracked = tracker.prepare(inputs)
        leaves = [None] * len(inputs)
        if wants_context:
            for index, tensor in enumerate(given):
                if tensor is not None and _takes_gradient(tensor) and (index >= 32 or needs_grad >> index & 1):
                    if not isinstance(tensor, torch.nn.Parameter):
                        leaves[index] = tensor.requires_grad_()
                    elif tensor.requires_grad:
                        leaves[index] = tensor
        saved = _SavedTensors()
        with torch.set_grad_enabled(wants_context), saved.recorded() if wants_context else contextlib.nullcontext():
            results = self.run(target, attrs, given)
        tracker.note_freed(given)
        del given
        _check_types(target, results, outputs)
        _copy(results, outputs)
        inputs.clear()  # so that nobody but the function could hold them
        if not wants_context:
            results.clear()
            tracker.acknowledge(tracked)
            return None
        for index, output in enumerate(outputs):
            shared = output is not None and tracker.may_share_result(index) and saved.move(results[index], output)
            tracker.track_result(tracked, index, output if shared else results[index], shared)
        edges = [get_gradient_edge(result) if result.requires_grad else None for result in results]
        return [edges, leaves, (attrs["call"], tracked) if is_function else None]

    def _put_parameters(self, record, tensors):
        """In the place of their views: a function that runs a module in its backward differentiates by the parameters
        that it was given."""
        for index, view in enumerate(tensors):
            parameter = (
                self.parameters.get(view.data_ptr()) if view is not None and index not in record.changed else None
            )
            if parameter is None or not _is_as(parameter, view):
                continue
            if not parameter._backward_hooks:  # which would run here as well as where its gradient arrives
                tensors[index] = parameter
            elif any(callable(part) for argument in record.arguments for part in record.parts(argument)):
                raise UnsupportedError(
                    f"{record.name} takes a parameter that has a hook, beside a function that it may differentiate"
                )

    def begin(self, target, attrs, inputs, outputs):
        return self._collectives.begin(target, attrs, inputs, outputs)

    def backward(self, context, gradients, outputs):
        edges, leaves, function = context
        if function is None:
            _pull(edges, leaves, gradients, outputs)
            return None
        call, tracked = function
        given, tracked_gradients = self._gradients[call].prepare(gradients)
        self.missing.update((call, index) for index in _pull(edges, leaves, given, outputs))
        context.clear()
        gradients.clear()
        del edges, leaves, given
        self._gradients[call].acknowledge(tracked_gradients)
        self._inputs[call].acknowledge(tracked)
        return None

    def run(self, target, attrs, tensors):
        """One call of a captured graph: its results that are tensors, then what it wrote into."""
        return self._run_aten(target, attrs, tensors) if "operands" in attrs else self._run_function(attrs, tensors)

    def _run_aten(self, target, attrs, tensors):
        overload = self._overloads.get(target)
        if overload is None:
            overload = self._overloads[target] = _Overload(target)
        written = attrs.get("writes", ())
        tensors = [tensor.clone() if index in written else tensor for index, tensor in enumerate(tensors)]
        if target in _OF_ROWS:
            tensors = [tensor.contiguous() for tensor in tensors]
        args, kwargs = overload.arguments(attrs, tensors)
        with _in_autocast(_TORCH_DTYPES.get(attrs.get("autocast"))):
            return _tensors(overload.run(*args, **kwargs)) + [tensors[index] for index in written]

    def _run_function(self, attrs, tensors):
        record = self._functions[attrs["call"]]
        # What it changes in place is not to change the engine's memory, and must not be a leaf.
        changed = record.changed
        tensors = [tensor.clone() if index in changed else tensor for index, tensor in enumerate(tensors)]
        with record.in_autocast():
            result = _apply(record.function, *record.filled(tensors, attrs.get("sizes", ())))
        items = [result] if record.single else result
        written = [tensors[rest[2]] for kind, *rest in record.outputs if kind == "written"]
        return [item for item in items if isinstance(item, torch.Tensor)] + written


class _RetentionTracker:
    """Which tensors a function still holds after its call (in a list of its own, say), to be seen at its first call:
    then every tensor is given as a clone. Later calls clone those that it held, for the engine reuses its memory, and
    track the others: what a function begins to hold is saved in time, and cloned from then on."""

    def __init__(self):
        self._held = None  # indices; results are counted from -1 downwards
        self._freed = set()  # indices of tensors whose memory it frees itself
        self.clones = 0  # of all calls so far

    def prepare(self, tensors):
        """(what to hand over, what to track)."""
        given, tracked = [], []
        for index, tensor in enumerate(tensors):
            if tensor is not None and not isinstance(tensor, torch.nn.Parameter):  # which is not the engine's
                if self._held is None or index in self._held or index in self._freed:
                    tensor = tensor.clone()
                    self.clones += 1
                if self._held is None or index not in self._held:
                    tracked.append((index, StorageWeakRef(tensor.untyped_storage())))
            given.append(tensor)
        return given, tracked

    def note_freed(self, given):
        """Of those handed over, after forward: `x.untyped_storage().resize_(0)` is for a clone, not for the engine's
        memory."""
        if self._held is None:
            strided = [tensor if tensor is not None and tensor.layout is torch.strided else None for tensor in given]
            sizes = [tensor.untyped_storage().nbytes() if tensor is not None else -1 for tensor in strided]
            self._freed = {index for index, size in enumerate(sizes) if size == 0 and given[index].numel()}

    def may_share_result(self, index):
        return self._held is not None and -1 - index not in self._held

    def track_result(self, tracked, index, result, shared):
        """`shared`: it lies in the engine's memory."""
        if shared or self._held is None:
            tracked.append((-1 - index, StorageWeakRef(result.untyped_storage())))

    def acknowledge(self, tracked):
        """Once the call and its context are gone, and the engine's memory is not yet reused: nobody should hold what is
        tracked."""
        first = self._held is None
        held = {index: storage for index, storage in tracked if not storage.expired()}
        self._held = (self._held or set()) | set(held)
        if first:
            return  # these are clones
        for storage in held.values():
            alive = torch.UntypedStorage._new_with_weak_ptr(storage.cdata)
            if alive is not None:
                alive.share_memory_()  # moves the bytes, under all tensors that look at them


class _RetainsNothing(_RetentionTracker):
    """PyTorch's own ops."""

    def prepare(self, tensors):
        return list(tensors), []

    def note_freed(self, given):
        pass

    def may_share_result(self, index):
        return True

    def track_result(self, tracked, index, result, shared):
        pass

    def acknowledge(self, tracked):
        pass


_RETAINS_NOTHING = _RetainsNothing()


class _SavedTensors:
    """What autograd saves in a call. A saved result is the one in the engine's memory: else its bytes live twice."""

    def __init__(self):
        self._cells = []

    def recorded(self):
        def pack(tensor):
            cell = [tensor]
            self._cells.append(cell)
            return cell

        return saved_tensors_hooks(pack, _unpack)

    def move(self, result, output):
        """Whether one was."""
        moved = False
        for cell in self._cells:
            saved = cell[0]
            if (
                saved.layout is torch.strided
                and saved.data_ptr() == result.data_ptr()
                and (saved.is_conj(), saved.is_neg()) == (result.is_conj(), result.is_neg())
                and saved.dtype == output.dtype
                and saved.shape == output.shape
                and saved.stride() == output.stride()
            ):
                cell[0] = output
                moved = True
        return moved


def _is_as(parameter, view):
    return (parameter.dtype, parameter.shape, parameter.stride()) == (view.dtype, view.shape, view.stride())


def _takes_gradient(tensor):
    return tensor.is_floating_point() or tensor.is_complex()


def _unpack(cell):
    return cell[0]


def _copy(results, outputs):
    with torch.no_grad():
        for result, output in zip(results, outputs, strict=True):
            if output is not None:
                output.copy_(result)


def _pull(edges, leaves, gradients, outputs):
    """The backward of one call: gradients of its results to gradients of its leaves, zeros where there is none; returns
    where there was none."""
    flowing = [
        (edge, gradient)
        for edge, gradient in zip(edges, gradients, strict=True)
        if edge is not None and gradient is not None
    ]
    known = [leaf for leaf, output in zip(leaves, outputs, strict=True) if output is not None and leaf is not None]
    found = iter(())
    if flowing and known:
        sources, incoming = zip(*flowing, strict=True)
        found = iter(torch.autograd.grad(sources, known, incoming, allow_unused=True))
    missing = []
    for index, (leaf, output) in enumerate(zip(leaves, outputs, strict=True)):
        if output is None:
            continue
        gradient = next(found, None) if leaf is not None else None
        if gradient is None:
            output.zero_()
            missing.append(index)
        else:
            output.copy_(gradient)
    return missing


def _check_types(target, results, outputs):
    if len(results) != len(outputs):
        raise UnsupportedError(f"{target} returned {len(results)} tensors where its trace had {len(outputs)}")
    for result, output in zip(results, outputs, strict=True):
        if output is not None and (result.shape != output.shape or result.dtype != output.dtype):
            raise UnsupportedError(
                f"{target} returned a {result.dtype} of {tuple(result.shape)} where its trace had a {output.dtype} of "
                f"{tuple(output.shape)}"
            )


def _tensors(result):
    if isinstance(result, torch.Tensor):
        return [result]
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _in_autocast(dtype):
    """Of this dtype, or in none."""
    if dtype is None and not torch.is_autocast_enabled("cpu"):
        return contextlib.nullcontext()  # leaving an autocast empties its cache, which takes longer than small ops
    return torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None)


class _Overload:
    """An op of PyTorch, and what its schema says of arguments, which takes some time to ask for."""

    def __init__(self, target):
        overload = overload_of(target)
        self.run = overload
        if is_collective(overload):
            self.run = lambda *args, **kwargs: wait_for(overload(*args, **kwargs))
        self._schema = [
            (each.name, str(each.real_type), each.default_value, each.has_default_value(), each.kwarg_only)
            for each in overload._schema.arguments
        ]

    def arguments(self, attrs, tensors):
        """args and kwargs from operands (named one by one in `operands`) and attributes."""
        operands = {}
        for name, tensor in zip(attrs["operands"], tensors, strict=True):
            operands.setdefault(name, []).append(tensor)
        args, kwargs = [], {}
        for name, kind, default, has_default, kwarg_only in self._schema:
            if name in operands:
                value = operands[name] if "List" in kind else operands[name][0]
            elif name in attrs:
                value = _value(kind, attrs[name])
            elif kind == "List[Tensor]" and not has_default:
                value = []
            else:
                value = "cpu" if kind == "Device" else default  # graphs name no device
            if not kwarg_only:
                args.append(value)
            elif value is not None or not has_default:
                kwargs[name] = value
        return args, kwargs


def _value(kind, value):
    if "ScalarType" in kind:
        return _TORCH_DTYPES.get(value, value)
    if "MemoryFormat" in kind:
        return torch.channels_last
    if kind in ("number", "Tensor") and isinstance(value, list):
        return complex(*value)
    if "List[bool]" in kind:
        return [bool(item) for item in value]
    return value
