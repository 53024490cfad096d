"""A module's parameters as if `fully_shard` had divided them among so many processes, of which there are none: for
plans that are looked at and never run."""

import torch

from .partitions import Partition
from .processes import Processes
from .shards import Shard


def as_if_divided(module, ranks):
    """(what takes the place of shard_of, and of owners_of) where `fully_shard` was called for each layer of the
    outermost lists of modules and for the module."""
    group = Processes(None)  # of nobody

    def shard_of(tensor, owners):
        # It divides no scalars.
        is_divided = isinstance(tensor, torch.nn.Parameter) and tensor.dim() > 0
        return Shard(group, ranks, tensor.shape) if is_divided else None

    owners = {id(parameter): module for parameter in module.parameters()}
    for layer in _layers(module):
        owners.update({id(parameter): layer for parameter in layer.parameters()})
    return shard_of, owners


def as_if_partitioned(module, ranks):
    """The same where DeepSpeed's ZeRO stage 3 has partitioned all parameters."""
    group = Processes(None)

    def shard_of(tensor, owners):
        return Partition(group, ranks, tensor.shape) if isinstance(tensor, torch.nn.Parameter) else None

    return shard_of, {}


def _layers(module):
    for child in module.children():
        if isinstance(child, torch.nn.ModuleList):
            yield from child
        else:
            yield from _layers(child)
