"""Parameters of which each process holds a part: rows where `fully_shard` has divided them, and partitions.py.

A graph takes the part and gathers the parameter where it is read; hooks of PyTorch's or DeepSpeed's, which gather it
around calls of modules, have no part in it. Parts of tensor parallelism are taken as they are (layouts.py).
"""

import contextlib
import functools
import math
import sys
from dataclasses import dataclass

import torch

from lowtide.errors import UnsupportedModel

from .mixed_precision import Dtypes, after_forward, before_forward, dtypes_of
from .partitions import is_partitioned, partition_of
from .processes import Processes

# Tables of hooks, and what stands in the place of one of `fully_shard`'s.
_HOOKS = {"_forward_pre_hooks": before_forward, "_forward_hooks": after_forward}
# DeepSpeed's wrapper for traces hides where a hook comes from.
_GATHER = ("torch.distributed.fsdp.", "deepspeed.runtime.zero.", "deepspeed.utils.nvtx")


@dataclass(frozen=True)
class Shard:
    """How a parameter is divided."""

    group: Processes
    ranks: int
    shape: torch.Size  # of the whole parameter

    layout: object = None  # Layout of what is gathered, which then is a part itself: its shape is `shape`
    dtypes: Dtypes = Dtypes()

    gives_whole_gradient = False  # the gradient of the rows leaves the graph
    is_gathered = True

    @property
    def length(self):
        """How many rows of what is gathered are the parameter's."""
        return self.shape[0]

    @property
    def part_shape(self):
        """What every process gives; the last ones may lack some of these rows."""
        return [-(-self.length // self.ranks), *self.shape[1:]]

    def local(self, parameter):
        """The rows of this process, filled up with others. Gradients flow to the parameter."""
        part = parameter.to_local()
        missing = self.part_shape[0] - part.shape[0]
        if not missing:
            return part
        storage = part.untyped_storage()
        end = (part.storage_offset() + math.prod(self.part_shape)) * part.element_size()
        if part.is_contiguous() and end <= storage.nbytes():
            return _WithRowsBehind.apply(part, self.part_shape)
        return torch.cat([part, part.new_zeros(missing, *part.shape[1:])])


class _WithRowsBehind(torch.autograd.Function):
    """A part with what lies behind it in memory, where `fully_shard` has room for the rows that other processes have
    more: no copy of a large parameter. What is gathered of them is dropped."""

    @staticmethod
    def forward(context, part, shape):
        context.length = part.shape[0]
        context.set_materialize_grads(False)
        return part.detach().as_strided(shape, torch.empty(shape, device="meta").stride())

    @staticmethod
    def backward(context, gradient):
        return None if gradient is None else gradient.narrow(0, 0, context.length), None


@dataclass(frozen=True)
class Layout:
    """How tensor parallelism has placed a parameter, on a mesh of one dim. The graph takes this process's part."""

    mesh: object
    placement: object
    shape: torch.Size  # of the part

    gives_whole_gradient = is_gathered = False
    dtypes = Dtypes()

    @property
    def group(self):
        return Processes(self.mesh.get_group())

    @property
    def layout(self):
        return self

    @property
    def part_shape(self):
        return list(self.shape)

    def local(self, parameter):
        """Gradients flow to the parameter."""
        return parameter.to_local()


def is_divided(tensor):
    """Whether it is a DTensor, of which each process may hold a part."""
    return "torch.distributed.tensor" in sys.modules and isinstance(tensor, torch.distributed.tensor.DTensor)


def part_of(tensor):
    """What this process holds of a tensor."""
    if is_partitioned(tensor):
        return tensor.ds_tensor
    return tensor.detach().to_local() if is_divided(tensor) else tensor


def sharded_modules(module):
    """The modules in it that `fully_shard` was called for."""
    return [child for child in module.modules() if is_sharded_class(type(child))]


def is_sharded_class(cls):
    """Whether `fully_shard` has made it."""
    return "torch.distributed.fsdp" in sys.modules and issubclass(cls, torch.distributed.fsdp.FSDPModule)


def owners_of(module):
    """{id of a parameter: the module of `fully_shard` that is next above it}."""
    return {id(parameter): outer for outer in sharded_modules(module) for parameter in outer.parameters()}


def shard_of(parameter, owners):
    """Its Shard, Partition or Layout, None where it is whole. `owners`: of its module. UnsupportedModel where a process
    has another part than a graph could take."""
    if is_partitioned(parameter):
        return partition_of(parameter)
    if not is_divided(parameter):
        return None
    mesh, placements, rows = parameter.device_mesh, parameter.placements, torch.distributed.tensor.Shard(0)
    if id(parameter) not in owners:
        return _layout_of(parameter, mesh, placements)
    dtypes = dtypes_of(owners[id(parameter)], parameter.dtype)
    if placements == (rows,):
        group = Processes(mesh.get_group())
        return Shard(group, group.dividing.size(), parameter.shape, None, dtypes)
    if placements == (torch.distributed.tensor.Replicate(), rows):
        group = Processes(mesh.get_group(1), mesh.get_group(0))
        return Shard(group, group.dividing.size(), parameter.shape, None, dtypes)
    if len(placements) == 2 and getattr(placements[0], "dim", None) == 0 and mesh.mesh_dim_names:
        group = Processes(mesh.get_group(0))
        layout = _layout_of(parameter, mesh[mesh.mesh_dim_names[1]], placements[1:])
        return Shard(group, group.dividing.size(), layout.shape, layout, dtypes)
    raise UnsupportedModel(
        f"a parameter of shape {list(parameter.shape)} is placed as {placements}, expected (Shard(dim=0),), "
        "(Replicate(), Shard(dim=0)), or (Shard(dim=0), …) on a mesh whose second dim is that of tensor parallelism"
    )


def _layout_of(parameter, mesh, placements):
    shape = list(parameter.shape)
    if mesh.ndim != 1 or placements[0].is_partial():
        raise UnsupportedModel(
            f"a parameter of shape {shape} is placed as {placements} on a mesh of {mesh.ndim} dims, expected Shard or "
            "Replicate on one of 1 dim"
        )
    (placement,), ranks = placements, mesh.size()
    if placement.is_shard():
        if shape[placement.dim] % ranks != 0:
            raise UnsupportedModel(
                f"a parameter of shape {shape} is not divided evenly among {ranks} processes along dim {placement.dim}"
            )
        shape[placement.dim] //= ranks
    return Layout(mesh, placement, torch.Size(shape))


class WholeParameters:
    """`with WholeParameters(module) as whole:` the module's divided parameters are plain ones of whole size, which
    nobody may read, and the hooks that gather them are not there."""

    def __init__(self, module):
        self._tables = []  # (table, what is in it, what is in it inside)
        self._whole = {}  # id of a parameter → the one in its place
        self._owners = owners_of(module)
        self.layouts = {}  # (module, name) → Layout of the DTensor that the one in the table stands for
        roots = sharded_modules(module)
        if any(is_partitioned(one) or is_divided(one) for one in module.parameters()):
            roots.append(module)
        children = dict.fromkeys(child for root in roots for child in root.modules())
        for child in children:
            for name, parameter in child._parameters.items():
                shard = None if parameter is None else shard_of(parameter, self._owners)
                if shard is not None and shard.layout is not None:
                    self.layouts[child, name] = shard.layout
            self._add(child._parameters, self._whole_of)
            for which, make in _HOOKS.items():
                self._add(getattr(child, which), functools.partial(_hook_inside, child, make))

    def _add(self, table, replaced):
        """`replaced`: what stands in the place of an entry; None for nothing."""
        before = dict(table.items())  # not through a getter, which gathers
        inside = {key: replaced(value) for key, value in before.items() if value is not None}
        if any(found is not before[key] for key, found in inside.items()):
            kept = {key: inside.get(key) for key, value in before.items() if value is None or inside[key] is not None}
            self._tables.append((table, before, kept))

    def _whole_of(self, parameter):
        shard = shard_of(parameter, self._owners)
        if shard is None:
            return parameter
        if id(parameter) not in self._whole:
            # Never touched, so that it is no memory.
            whole = torch.empty(shard.shape, dtype=shard.dtypes.gathered or parameter.dtype)
            self._whole[id(parameter)] = torch.nn.Parameter(whole, parameter.requires_grad)
        return self._whole[id(parameter)]

    def __enter__(self):
        self._fill(2)
        return self

    def __exit__(self, *_):
        self._fill(1)
        for whole in self._whole.values():
            whole.untyped_storage().resize_(0)

    @contextlib.contextmanager
    def put_back(self):
        """The module as it is outside."""
        self._fill(1)
        try:
            yield
        finally:
            self._fill(2)

    def _fill(self, which):
        for entry in self._tables:
            table = entry[0]
            table.clear()
            table.update(entry[which])


def _hook_inside(module, make, hook):
    if not (getattr(hook, "__module__", None) or "").startswith(_GATHER):
        return hook
    return make(module) if is_sharded_class(type(module)) else None
