"""Sparse tensors in forward: an adjacency that a module keeps, or one that forward makes of indices and values.

The engine's tensors are dense. What leads from dense tensors, through sparse ones, to a dense result is one node of the
graph, whose op is made for it: in each call PyTorch does the same, with its own gradients.

    a = torch.sparse_coo_tensor(indices, values, (n, n))      →
    b = a.t() @ self.adjacency @ x                            b = sparse_matmul_0([indices, values, x], [n])
"""

import contextlib
import itertools
from dataclasses import dataclass

import torch
import torch.utils._pytree as pytree
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from lowtide.errors import UnsupportedError
from lowtide.guards.values import PLAIN_TENSORS

_library = torch.library.Library("lowtide", "FRAGMENT")
_library.define("sparse_call(Tensor[] tensors, SymInt[] sizes, int call) -> Tensor")
_numbers = itertools.count()
_calls = {}  # number → _Call, while a trace has it


@torch.library.register_fake("lowtide::sparse_call", lib=_library)
def _trace_call(tensors, sizes, call):
    return torch.empty_like(_calls[call].like(tensors, sizes))


def _never(*_):
    raise AssertionError("lowtide::sparse_call stands in a trace only, behind which each call has an op of its own")


torch.library.register_autograd("lowtide::sparse_call", _never, lib=_library)


def _same(tensor, *_, **__):
    return tensor


def _mm(one, other, *_):
    return torch.mm(one, other)


def _of_size(which):
    def make(*args, **kwargs):
        values = args[which - 1] if len(args) >= which else kwargs["values"]
        size = args[which] if len(args) > which else kwargs.get("size")
        if size is None:
            raise UnsupportedError("forward makes a sparse tensor whose size depends on data (give it a size)")
        dtype = kwargs.get("dtype") or (values.dtype if isinstance(values, torch.Tensor) else None)
        return torch.empty(tuple(size), dtype=dtype)

    return make


# What gives a dense tensor of sparse ones, and what gives a sparse one: with what gives a tensor of its shape and dtype
# where all of them are dense.
_GIVE_DENSE = {
    torch.sparse.addmm: torch.addmm,
    **{
        function: function
        for function in (
            *(torch.mm, torch.Tensor.mm, torch.matmul, torch.Tensor.matmul, torch.Tensor.__rmatmul__),
            *(torch.mv, torch.Tensor.mv, torch.addmm, torch.Tensor.addmm),
        )
    },
    torch.Tensor.to_dense: lambda tensor, dtype=None, **_: tensor.to(dtype or tensor.dtype),
}
_GIVE_SPARSE = {
    torch.sparse_coo_tensor: _of_size(2),
    torch.sparse_csr_tensor: _of_size(3),
    torch.sparse_csc_tensor: _of_size(3),
    **dict.fromkeys((torch.Tensor.coalesce, torch.Tensor.to_sparse, torch.Tensor.to_sparse_coo), _same),
    **dict.fromkeys((torch.Tensor.to_sparse_csr, torch.Tensor.to_sparse_csc), _same),
    **dict.fromkeys((torch.sparse.softmax, torch.sparse.log_softmax), _same),
    torch.Tensor.T.__get__: torch.t,
    **{
        function: function
        for function in (
            *(torch.Tensor.t, torch.t, torch.Tensor.transpose, torch.transpose, torch.Tensor.detach, torch.Tensor.to),
            *(torch.Tensor.float, torch.Tensor.double, torch.Tensor.clone, torch.clone, torch.Tensor.neg, torch.neg),
            *(torch.mul, torch.Tensor.mul, torch.Tensor.__rmul__, torch.div, torch.Tensor.div),
        )
    },
}
_MAKE = {function for function in _GIVE_SPARSE if "sparse" in function.__name__}
# Sparse where both operands are.
_OF_TWO = {function: function for function in (torch.add, torch.Tensor.add, torch.sub, torch.Tensor.sub)}
_OF_TWO[torch.sparse.mm] = _mm
_ASKS = {getattr(torch.Tensor, name).__get__ for name in
         ("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_sparse", "is_sparse_csr", "is_cpu",
          "is_cuda", "is_meta", "is_leaf", "is_quantized", "grad_fn")} | {
    torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.__len__, torch.Tensor.is_floating_point,
    torch.Tensor.is_complex, torch.is_floating_point, torch.is_complex, torch.is_tensor,
}  # fmt: skip


def is_sparse(thing):
    return isinstance(thing, torch.Tensor) and thing.layout is not torch.strided


@dataclass
class _Held:
    """A sparse tensor that a module keeps: what is in it then."""

    tensor: torch.Tensor


@dataclass
class _Given:
    """Stands for what each call brings."""

    is_tensor: bool
    place: int


@dataclass
class _Applied:
    function: object
    # Of (args, kwargs): plain ones, _Held, _Applied, and tensors and sizes of the trace, or _Given of these.
    leaves: list
    spec: pytree.TreeSpec

    def bound(self, tensors, sizes):
        """The same of what an op is given; adds what these are here."""
        return _Applied(self.function, [_bound(leaf, tensors, sizes) for leaf in self.leaves], self.spec)

    def value(self, tensors, sizes, is_dense):
        """`is_dense`: one of the shape and dtype of the result, from dense tensors."""
        args, kwargs = pytree.tree_unflatten(
            [_value(leaf, tensors, sizes, is_dense) for leaf in self.leaves], self.spec
        )
        function = _rule(self.function) if is_dense else self.function
        return function(*args, **kwargs)


@dataclass
class _Call:
    """A dense result."""

    applied: _Applied

    def like(self, tensors, sizes):
        return self.applied.value(tensors, sizes, True)

    def run(self, tensors, sizes):
        result = self.applied.value(tensors, sizes, False)
        return result.clone() if any(result is tensor for tensor in tensors) else result


def _rule(function):
    return next(table[function] for table in (_GIVE_DENSE, _GIVE_SPARSE, _OF_TWO) if function in table)


def _bound(leaf, tensors, sizes):
    if isinstance(leaf, _Applied):
        return leaf.bound(tensors, sizes)
    if not isinstance(leaf, torch.Tensor | torch.SymInt):
        return leaf
    given = tensors if isinstance(leaf, torch.Tensor) else sizes
    place = next((place for place, each in enumerate(given) if each is leaf), len(given))
    if place == len(given):
        given.append(leaf)
    return _Given(given is tensors, place)


def _value(leaf, tensors, sizes, is_dense):
    if isinstance(leaf, _Applied):
        return leaf.value(tensors, sizes, is_dense)
    if isinstance(leaf, _Held):
        return torch.empty(leaf.tensor.shape, dtype=leaf.tensor.dtype) if is_dense else leaf.tensor
    return (tensors if leaf.is_tensor else sizes)[leaf.place] if isinstance(leaf, _Given) else leaf


class SparseTensors(TorchFunctionMode):
    """While active, what forward computes with sparse tensors makes such nodes."""

    def __init__(self, module, is_running):
        super().__init__()
        self._is_running = is_running
        self._buffers = [
            (child, name, buffer)
            for child in module.modules()
            for name, buffer in child._buffers.items()
            if is_sparse(buffer)
        ]
        self._made = {}  # id → (what stands for it in forward, _Applied)
        self._numbers = []  # of calls

    @contextlib.contextmanager
    def aside(self):
        """The module's own sparse buffers are none that the exporter sees."""
        for child, name, _ in self._buffers:
            child._buffers[name] = torch.empty(0)
        try:
            yield
        finally:
            for child, name, buffer in self._buffers:
                child._buffers[name] = buffer

    @contextlib.contextmanager
    def in_forward(self):
        """Forward sees them."""
        outside = [child._buffers[name] for child, name, _ in self._buffers]
        for child, name, buffer in self._buffers:
            child._buffers[name] = buffer
        try:
            yield
            for child, name, buffer in self._buffers:
                if child._buffers.get(name) is not buffer:
                    raise UnsupportedError(f"forward replaces the buffer '{name}', of layout {buffer.layout}")
        finally:
            for (child, name, _), tensor in zip(self._buffers, outside, strict=True):
                child._buffers[name] = tensor

    def of_argument(self, argument):
        """What stands for a SparseArgument in forward."""
        function, args, kwargs = argument.call()
        leaves, spec = pytree.tree_flatten((args, kwargs))
        return self._sparse(_Applied(function, leaves, spec), args)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not self._is_running() or not (func in _MAKE or any(map(is_sparse, (*args, *kwargs.values())))):
            return func(*args, **kwargs)
        if func in _ASKS:
            return func(*args, **kwargs)
        if not (func in _GIVE_DENSE or func in _GIVE_SPARSE or func in _OF_TWO) or kwargs.get("out") is not None:
            layout = next((each.layout for each in (*args, *kwargs.values()) if is_sparse(each)), torch.sparse_coo)
            raise UnsupportedError(f"forward calls {getattr(func, '__name__', func)} of a tensor of layout {layout}")
        if torch.is_autocast_enabled("cpu"):
            raise UnsupportedError("forward computes with a sparse tensor under autocast")
        leaves, spec = pytree.tree_flatten((args, kwargs))
        applied = _Applied(func, [self._leaf(leaf) for leaf in leaves], spec)
        is_dense = func in _GIVE_DENSE or (func in _OF_TWO and not all(map(is_sparse, args[:2])))
        return self._dense(applied) if is_dense else self._sparse(applied, args)

    def _leaf(self, leaf):
        if not is_sparse(leaf):
            return leaf
        if (made := self._made.get(id(leaf))) is not None:
            return made[1]
        if type(leaf) not in PLAIN_TENSORS or leaf.requires_grad:
            raise UnsupportedError(f"forward computes with a tensor of layout {leaf.layout} of unknown origin")
        return _Held(leaf)

    def _dense(self, applied):
        tensors, sizes, number = [], [], next(_numbers)
        _calls[number] = _Call(applied.bound(tensors, sizes))
        self._numbers.append(number)
        return torch.ops.lowtide.sparse_call(tensors, sizes, number)

    def _sparse(self, applied, args):
        tensors, sizes = [], []
        bound = applied.bound(tensors, sizes)
        mode = next((tensor.fake_mode for tensor in tensors if hasattr(tensor, "fake_mode")), None)
        with (
            _disable_current_modes(),
            torch._C.DisableTorchFunction(),
            torch.no_grad(),
            mode or contextlib.nullcontext(),
        ):
            like = bound.value([torch.empty(each.shape, dtype=each.dtype) for each in tensors], sizes, True)
            layout = _layout(applied.function, args)
            stand_in = torch.empty(like.shape, dtype=like.dtype, layout=layout)
        if applied.function is not torch.Tensor.detach:
            stand_in.requires_grad_(any(tensor.requires_grad for tensor in tensors))
        self._made[id(stand_in)] = stand_in, applied
        return stand_in

    def as_ops(self, graph_module):
        """Gives each node an op of its own. What has to live as long as the graph."""
        self._made.clear()
        libraries = []
        for module in [each for each in graph_module.modules() if isinstance(each, torch.fx.GraphModule)]:
            for node in module.graph.nodes:
                if node.target is torch.ops.lowtide.sparse_call.default:
                    tensors, sizes, number = node.args
                    node.target, library = _op(_calls[number], number)
                    node.args = tensors, sizes
                    libraries.append(library)
        return libraries

    def let_go(self):
        self._made.clear()
        for number in self._numbers:
            _calls.pop(number, None)


def _layout(function, args):
    """Of a sparse result."""
    named = {"csr": torch.sparse_csr, "csc": torch.sparse_csc, "coo": torch.sparse_coo}
    last = function.__name__.split("_")[1 if "tensor" in function.__name__ else -1]
    if last in named:
        return named[last]
    layout = next((each.layout for each in args if is_sparse(each)), torch.sparse_coo)
    swapped = {torch.sparse_csr: torch.sparse_csc, torch.sparse_csc: torch.sparse_csr}
    return swapped.get(layout, layout) if function.__name__ in ("t", "transpose", "__get__") else layout


def _op(call, number):
    name = f"sparse_{call.applied.function.__name__.strip('_')}_{number}"
    library = torch.library.Library("lowtide", "FRAGMENT")
    library.define(f"{name}(Tensor[] tensors, SymInt[] sizes) -> Tensor")
    library.impl(name, call.run, "CompositeImplicitAutograd")
    return getattr(torch.ops.lowtide, name).default, library
