"""What training on several processes asks: parameters of which a process holds a part, and what all do together."""

from .as_if import as_if_divided
from .collectives import Collectives
from .partitions import computes
from .shards import WholeParameters, is_sharded_class, owners_of, part_of, shard_of
from .together import Together

__all__ = [
    "Collectives",
    "Together",
    "WholeParameters",
    "as_if_divided",
    "computes",
    "is_sharded_class",
    "owners_of",
    "part_of",
    "shard_of",
]
