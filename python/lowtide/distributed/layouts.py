"""DTensors of tensor parallelism while forward is traced: what this process holds of each is a tensor of the graph, and
where PyTorch would redistribute there is one node.

A value that all processes have alike has a gradient that they have alike. Where such a value meets one that is divided,
each process makes a part of its gradient: there a node stands that does nothing in forward and adds these parts up in
backward. So the gradient of every value lies as the value does, that of a sum to come (Partial) as the sum.
"""

import contextlib
import sys

import torch
import torch.utils._pytree as pytree
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from lowtide.errors import UnsupportedError

from .processes import Processes

_library = torch.library.Library("lowtide", "FRAGMENT")
_library.define("redistribute(Tensor x, str kind, str gradient, int axis, int group, int ranks) -> Tensor")

# What is asked of a tensor, and says nothing that its layout changes.
_ASKS = frozenset(
    ("size", "dim", "ndimension", "numel", "nelement", "stride", "is_contiguous", "is_floating_point", "is_complex",
     "element_size", "get_device", "__len__", "is_same_size", "is_signed", "is_inference", "__hash__")
)  # fmt: skip
_COMPUTED = ("T", "mT", "H", "mH", "real")  # attributes that are a call
# Linear in their one operand, and so of sums to come what they are of the sum.
_LINEAR = frozenset(
    ("view", "reshape", "transpose", "permute", "flatten", "unflatten", "unsqueeze", "squeeze", "contiguous", "clone",
     "movedim", "t", "T", "mT", "neg", "__neg__")
)  # fmt: skip
_TAKES_SIZES = ("view", "reshape")


@torch.library.register_fake("lowtide::redistribute", lib=_library)
def _trace_redistribute(x, kind, gradient, axis, group, ranks):
    sizes = list(x.shape)
    if kind == "gather":
        sizes[axis] = sizes[axis] * ranks
    elif kind in ("scatter", "part"):
        sizes[axis] = sizes[axis] // ranks
    return x.new_empty(sizes)


def _never(*_):
    raise AssertionError("lowtide::redistribute stands in a captured graph only, where it is an op of the engine's")


# A result that takes a gradient where x does.
torch.library.register_autograd("lowtide::redistribute", _never, lib=_library)


class Layouts(TorchFunctionMode):
    """While active, calls for DTensors are calls for what this process holds of them."""

    def __init__(self, parameters):
        """`parameters`: {(module, name): Layout} of those in the module's tables that stand for DTensors."""
        super().__init__()
        self.groups = []  # Processes, by the numbers that nodes have
        self._parameters = parameters
        self._varying = {}  # id of a DTensor → (it, a function to its local tensor for one that meets divided ones)

    def __exit__(self, *raised):
        self._varying.clear()
        return super().__exit__(*raised)

    @contextlib.contextmanager
    def in_force(self):
        """Within a trace, whose parameters are fake ones: with DTensors of them in the tables."""
        if not self._parameters:
            with _collectives_of_nn_run():
                yield
            return
        found = {key: key[0]._parameters[key[1]] for key in self._parameters}
        made = {}  # tied ones are one
        for key, local in found.items():
            layout = self._parameters[key]
            if id(local) not in made:
                made[id(local)] = self._made(local, layout.mesh, layout.placement)
            key[0]._parameters[key[1]] = made[id(local)]
        try:
            with self, _collectives_of_nn_run():
                yield
        finally:
            for (module, name), local in found.items():
                module._parameters[name] = local

    # ---- what leads from layout to layout

    def apply(self, function, arguments):
        """A call of one of PyTorch's autograd functions for DTensors or collectives, or NotImplemented."""
        if function.__module__ == "torch.distributed.nn.functional":
            known = {"_AllReduce": self._all_reduced, "_AllGather": self._all_gathered}
            return known.get(function.__name__, _not_known)(*arguments)
        if not self._parameters or not function.__module__.startswith("torch.distributed.tensor."):
            return NotImplemented
        known = {
            "_FromTorchTensor": self._from_local,
            "_ToTorchTensor": self._to_local,
            "Redistribute": self._redistributed,
        }
        return known.get(function.__name__, _unknown)(function, *arguments)

    def _all_reduced(self, op, group, tensor):
        if op != torch.distributed.ReduceOp.SUM:
            return NotImplemented
        shape = tensor.shape
        return self._collective(tensor.reshape(1, *shape), "sum", "sum", group).reshape(shape)

    def _all_gathered(self, group, tensor):
        return self._collective(tensor.unsqueeze(0), "gather", "scatter", group).unbind(0)

    def _from_local(self, function, local, mesh, placements, run_check, shape=None, stride=None, grad_placements=None):
        _only(mesh, placements)
        if run_check or grad_placements is not None:
            raise UnsupportedError("forward calls DTensor.from_local with run_check or grad_placements")
        with torch._C.DisableTorchFunction():  # for which the exporter would write down how a DTensor is made
            return function.forward(_Context(), local, mesh, placements, False, shape, stride)

    def _to_local(self, _, tensor, grad_placements):
        placement = _placement_of(tensor)
        if grad_placements is None or tuple(grad_placements) == (_of_gradient(placement),):
            return _local(tensor)
        if placement.is_replicate() and tuple(grad_placements)[0].is_partial():
            return self._for_divided(tensor)
        raise UnsupportedError(
            f"forward calls to_local of a DTensor {placement} with grad_placements={grad_placements}"
        )

    def _redistributed(self, _, tensor, mesh, placements, async_op, dtypes=None):
        before, after = _placement_of(tensor), _only(mesh, placements)
        if dtypes is not None and {dtypes["op_dtype"], dtypes["out_dtype"]} != {tensor.dtype}:
            raise UnsupportedError("forward redistributes a DTensor in another dtype")
        local, dims = _local(tensor), tensor.dim()
        axis = {each: each.dim % dims for each in (before, after) if each.is_shard()}
        if before == after:
            return tensor
        if before.is_partial() and after.is_replicate():
            return self._made(self._node(local, "sum", "same", 0, mesh), mesh, after)
        if before.is_partial() and after.is_shard():
            self._check_even(tensor, axis[after], mesh)
            return self._made(self._node(local, "scatter", "gather", axis[after], mesh), mesh, after)
        if before.is_replicate() and after.is_shard():
            self._check_even(tensor, axis[after], mesh)
            return self._made(self._node(local, "part", "gather", axis[after], mesh), mesh, after)
        if before.is_shard() and after.is_replicate():
            return self._gathered(local, axis[before], mesh, after)
        if before.is_shard() and after.is_shard():
            whole = self._node(local, "gather", "part", axis[before], mesh)
            self._check_even(tensor, axis[after], mesh)
            return self._made(self._node(whole, "part", "gather", axis[after], mesh), mesh, after)
        raise UnsupportedError(f"forward redistributes a DTensor from {before} to {after}")

    def _gathered(self, local, axis, mesh, after):
        """Its gradient is divided again at once, summed first where there are parts of it."""
        made = self._made(self._node(local, "gather", "part", axis, mesh), mesh, after)
        self._varying[id(made)] = made, lambda: self._node(local, "gather", "scatter", axis, mesh)
        return made

    @staticmethod
    def _check_even(tensor, axis, mesh):
        if tensor.shape[axis] % mesh.size() != 0:
            raise UnsupportedError(f"dim {axis} of a DTensor, {tensor.shape[axis]}, is not divided evenly")

    def _node(self, local, kind, gradient, axis, mesh):
        return self._collective(local, kind, gradient, mesh.get_group(), axis)

    def _collective(self, local, kind, gradient, group, axis=0):
        group = torch.distributed.group.WORLD if group is None else group
        processes = Processes(group)
        if processes not in self.groups:
            self.groups.append(processes)
        number = self.groups.index(processes)
        return torch.ops.lowtide.redistribute(local, kind, gradient, axis, number, group.size())

    @staticmethod
    def _made(local, mesh, placement):
        return torch.distributed.tensor.DTensor.from_local(local, mesh, [placement], run_check=False)

    def _for_divided(self, tensor):
        """Of a tensor that all have alike, for a call that reads divided ones."""
        known, make = self._varying.get(id(tensor), (tensor, None))
        local = _local(tensor)
        if make is None:
            mesh = tensor.device_mesh
            if not local.dtype.is_floating_point:
                return local
            summed = local if local.dim() else local.reshape(1)
            made = self._node(summed, "same", "sum", 0, mesh)
            made = made if local.dim() else made.reshape([])
        else:
            made = make()
        self._varying[id(tensor)] = known, lambda: made
        return made

    # ---- calls

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if is_placed(leaf)]
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = getattr(func.__self__, "__name__", "")
            if name not in _COMPUTED:
                return func(*args, **kwargs)
        if not tensors or name in _ASKS:
            return func(*args, **kwargs)
        if len({tensor.device_mesh for tensor in tensors}) > 1:
            raise UnsupportedError(f"{name} takes DTensors of several meshes")
        if func is torch.nn.functional.linear:
            return self._linear(*args, **kwargs)
        if func is torch.nn.functional.embedding and is_placed(args[1]) and _placement_of(args[1]) == _dim(0):
            return self._rows(*args, **kwargs)
        return self._local_call(func, name, args, kwargs)

    def _linear(self, x, weight, bias=None):
        """Of a sum to come, the bias is each process's share."""
        mesh = weight.device_mesh
        if bias is None or not is_placed(x) or _placement_of(weight) != _dim(1):
            return self._local_call(torch.nn.functional.linear, "linear", (x, weight, bias), {})
        product = self._local_call(torch.nn.functional.linear, "linear", (x, weight), {})
        if not _placement_of(product).is_partial() or not _placement_of(bias).is_replicate():
            raise UnsupportedError(f"linear takes DTensors {_placement_of(x)}, {_placement_of(weight)} and a bias")
        share = self._node(_local(bias), "share", "same", 0, mesh)
        return self._made(_local(product) + share, mesh, _placement_of(product))

    def _rows(self, ids, table, *others, **named):
        """Of a table whose rows are divided: zeros for those of other processes."""
        named.pop("norm_type", None)
        if any(value not in (None, False) for value in (*others, *named.values())) or not is_placed(ids):
            raise UnsupportedError("embedding takes a DTensor and padding_idx, max_norm, scale_grad_by_freq or sparse")
        mesh, rows = table.device_mesh, _local(table)
        if not _placement_of(ids).is_replicate():
            raise UnsupportedError(f"embedding takes DTensors {_placement_of(ids)}, {_placement_of(table)}")
        places = _local(ids) - mesh.get_local_rank() * rows.shape[0]
        elsewhere = (places < 0) | (places >= rows.shape[0])
        found = torch.nn.functional.embedding(places.masked_fill(elsewhere, 0), rows)
        found = found.masked_fill(elsewhere.unsqueeze(-1), 0)
        return self._made(found, mesh, torch.distributed.tensor.Partial("sum"))

    def _local_call(self, func, name, args, kwargs):
        """The same call for the local tensors, where PyTorch would do just that."""
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if is_placed(leaf)]
        mesh = tensors[0].device_mesh
        found = _outputs_of(func, name, args, kwargs, tensors)
        placements = {_placement_of(output) for output in found if is_placed(output)}
        given = {_placement_of(tensor) for tensor in tensors}
        partial = any(each.is_partial() for each in (*given, *placements))
        if partial and not (name in _LINEAR or (name == "linear" and given == {_dim(-1, tensors[0]), _dim(1)})):
            raise UnsupportedError(f"{name} of DTensors {_words(given)} takes or makes sums to come (Partial)")
        divided = any(not each.is_replicate() for each in placements)
        if not divided and any(not each.is_replicate() for each in given):
            raise UnsupportedError(f"{name} of DTensors {_words(given)}, which PyTorch would redistribute")

        def local(leaf):
            if not is_placed(leaf):
                return leaf
            return self._for_divided(leaf) if divided and _placement_of(leaf).is_replicate() else _local(leaf)

        args, kwargs = pytree.tree_map(local, (args, kwargs))
        if name in _TAKES_SIZES:
            args = _local_sizes(args, found[0], mesh)
        results, structure = pytree.tree_flatten(func(*args, **kwargs))
        made = []
        for result, output in zip(results, found, strict=True):
            if isinstance(result, torch.Tensor):
                if not is_placed(output) or _hints(result.shape) != list(output.to_local().shape):
                    raise UnsupportedError(f"{name} of DTensors {_words(given)} needs sizes of all processes")
                result = self._made(result, mesh, _placement_of(output))
            made.append(result)
        return pytree.tree_unflatten(made, structure)


@contextlib.contextmanager
def _collectives_of_nn_run():
    """They refuse to be called while PyTorch exports, for what they call is not traced; it is one of our nodes."""
    module = sys.modules.get("torch.distributed.nn.functional")
    refuse = getattr(module, "_not_supported_under_compile", None)
    if refuse is None:
        yield
        return
    module._not_supported_under_compile = lambda *_, **__: None
    try:
        yield
    finally:
        module._not_supported_under_compile = refuse


class _Context:
    """Stands in for autograd's ctx."""

    def set_materialize_grads(self, value):
        pass


def is_placed(value):
    return isinstance(value, torch.distributed.tensor.DTensor)


def _not_known(*_):
    return NotImplemented


def _unknown(function, *_):
    raise UnsupportedError(f"forward calls {function.__module__}.{function.__name__}")


def _local(tensor):
    return tensor._local_tensor  # to_local() is one of the calls that are followed


def _only(mesh, placements):
    if mesh.ndim != 1:
        raise UnsupportedError(f"forward places a DTensor on a mesh of {mesh.ndim} dims, expected 1")
    (placement,) = placements
    if placement.is_partial() and placement != torch.distributed.tensor.Partial("sum"):
        raise UnsupportedError(f"a DTensor is placed as {placement}")
    return placement


def _placement_of(tensor):
    return _only(tensor.device_mesh, tensor.placements)


def _of_gradient(placement):
    return torch.distributed.tensor.Replicate() if placement.is_partial() else placement


def _dim(dim, tensor=None):
    return torch.distributed.tensor.Shard(dim if dim >= 0 else tensor.dim() + dim)


def _words(placements):
    return ", ".join(sorted(map(str, placements)))


def _hints(shape):
    return [size.node.hint if isinstance(size, torch.SymInt) else size for size in shape]


def _local_sizes(args, output, mesh):
    """The sizes that `view` is asked for, of what this process holds."""
    tensor, *sizes = args
    sizes = list(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], list | tuple) else sizes
    placement = _placement_of(output)
    if placement.is_shard() and sizes[placement.dim] != -1:
        sizes[placement.dim] = sizes[placement.dim] // mesh.size()
    return tensor, sizes


class _Seen(TorchDispatchMode):
    """What PyTorch runs for DTensors beside their own ops."""

    def __init__(self):
        super().__init__()
        self.communicates = self.draws = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(each, torch.distributed.tensor.DTensor) for each in types):
            return NotImplemented
        self.communicates |= func.namespace == "_c10d_functional"
        self.draws |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def _outputs_of(func, name, args, kwargs, tensors):
    """What PyTorch's own DTensors without memory return: their layouts."""

    def empty(leaf):
        if isinstance(leaf, torch.SymInt):
            return leaf.node.hint
        if not is_placed(leaf):
            return leaf
        local = torch.empty(_hints(_local(leaf).shape), dtype=leaf.dtype, device="meta")
        return torch.distributed.tensor.DTensor.from_local(local, leaf.device_mesh, leaf.placements, run_check=False)

    if any(isinstance(leaf, torch.Tensor) and not is_placed(leaf) for leaf in pytree.tree_leaves((args, kwargs))):
        raise UnsupportedError(f"{name} takes DTensors and plain tensors")
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad(), _Seen() as seen:
        args, kwargs = pytree.tree_map(empty, (args, kwargs))
        found = pytree.tree_leaves(func(*args, **kwargs))
    if seen.communicates:
        raise UnsupportedError(f"{name} of DTensors {_words(map(_placement_of, tensors))}, which PyTorch redistributes")
    if seen.draws:
        raise UnsupportedError(f"{name} draws random numbers for DTensors")
    return found
