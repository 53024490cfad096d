"""What training on several processes asks: parameters of which a process holds a part, and what all do together."""

from .as_if import as_if_divided, as_if_partitioned
from .collectives import Collectives
from .handed_on import hand_on
from .layouts import Layouts
from .partitions import computes
from .processes import Processes, is_distributed
from .shards import WholeParameters, is_divided, is_sharded_class, owners_of, part_of, shard_of
from .together import Together

__all__ = [
    "Collectives",
    "Layouts",
    "Processes",
    "Together",
    "WholeParameters",
    "as_if_divided",
    "as_if_partitioned",
    "computes",
    "hand_on",
    "is_distributed",
    "is_divided",
    "is_sharded_class",
    "owners_of",
    "part_of",
    "shard_of",
]
