"""Parameters of which each process holds a part: rows where `fully_shard` has divided them, and partitions.py.

A graph takes the part and gathers the parameter where it is read; hooks of PyTorch's or DeepSpeed's, which gather it
around calls of modules, have no part in it.
"""

import contextlib
import sys
from dataclasses import dataclass

import torch

from lowtide.errors import UnsupportedModel

from .partitions import is_partitioned, partition_of
from .processes import Processes

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
# DeepSpeed's wrapper for traces hides where a hook comes from.
_GATHER = ("torch.distributed.fsdp.", "deepspeed.runtime.zero.", "deepspeed.utils.nvtx")


@dataclass(frozen=True)
class Shard:
    """How a parameter is divided."""

    group: Processes
    ranks: int
    shape: torch.Size  # of the whole parameter

    gives_whole_gradient = False  # the gradient of the rows leaves the graph

    @property
    def length(self):
        """How many rows of what is gathered are the parameter's."""
        return self.shape[0]

    @property
    def part_shape(self):
        """What every process gives; the last ones may lack some of these rows."""
        return [-(-self.length // self.ranks), *self.shape[1:]]

    def local(self, parameter):
        """The rows of this process, filled up with zeros. Gradients flow to the parameter."""
        part = parameter.to_local()
        missing = self.part_shape[0] - part.shape[0]
        return torch.cat([part, part.new_zeros(missing, *part.shape[1:])]) if missing else part


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


def shard_of(parameter):
    """Its Shard or Partition, None where it is whole. UnsupportedModel where a process has another part than a graph
    could take."""
    if is_partitioned(parameter):
        return partition_of(parameter)
    if not is_divided(parameter):
        return None
    mesh, placements = parameter.device_mesh, parameter.placements
    by_rows = torch.distributed.tensor.Shard(0)
    if placements == (by_rows,):
        group = Processes(mesh.get_group())
    elif placements == (torch.distributed.tensor.Replicate(), by_rows):
        group = Processes(mesh.get_group(1), mesh.get_group(0))
    else:
        raise UnsupportedModel(
            f"a parameter of shape {list(parameter.shape)} is placed as {placements}, expected (Shard(dim=0),) or "
            "(Replicate(), Shard(dim=0))"
        )
    return Shard(group, group.dividing.size(), parameter.shape)


class WholeParameters:
    """`with WholeParameters(module) as whole:` the module's divided parameters are plain ones of whole size, which
    nobody may read, and the hooks that gather them are not there."""

    def __init__(self, module):
        self._tables = []  # (table, what is in it, what is in it inside)
        self._whole = {}  # id of a parameter → the one in its place
        roots = sharded_modules(module)
        if any(map(is_partitioned, module.parameters())):
            roots.append(module)
        children = dict.fromkeys(child for root in roots for child in root.modules())
        for child in children:
            self._add(child._parameters, lambda name, parameter: True, self._whole_of)
            for which in _HOOKS:
                self._add(getattr(child, which), lambda key, hook: not _gathers(hook), lambda hook: hook)

    def _add(self, table, keeps, replaced):
        before = dict(table.items())  # not through a getter, which gathers
        inside = {key: replaced(value) for key, value in before.items() if keeps(key, value)}
        if len(inside) != len(before) or any(inside[key] is not value for key, value in before.items()):
            self._tables.append((table, before, inside))

    def _whole_of(self, parameter):
        shard = None if parameter is None else shard_of(parameter)
        if shard is None:
            return parameter
        if id(parameter) not in self._whole:
            # Never touched, so that it is no memory.
            whole = torch.empty(shard.shape, dtype=parameter.dtype)
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


def _gathers(hook):
    return (getattr(hook, "__module__", None) or "").startswith(_GATHER)
