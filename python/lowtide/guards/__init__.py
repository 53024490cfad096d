"""What a captured graph depends on besides tensors' values: one tree that live calls check, the log quotes and the disk
cache hashes. The only place that looks into a user's Python objects.

with Observation(module) as observation: …a trace of forward…
guards = Guards(module, observation.seen)
guards.hold() or guards.why()
"""

from .classes import may_ask_for_classes, may_ask_for_numbers_classes, may_ask_for_tensors_classes
from .data import version_of, write_data
from .digest import Digest, NotCacheable, build, code_digest
from .draws import Draws, put_back, states_now
from .observe import Observation
from .questions import first_other
from .traced_draws import in_graph
from .tree import Change, Guards
from .writes import Write, setters

__all__ = [
    "Change",
    "Digest",
    "Draws",
    "Guards",
    "NotCacheable",
    "Observation",
    "Write",
    "build",
    "code_digest",
    "first_other",
    "in_graph",
    "may_ask_for_classes",
    "may_ask_for_numbers_classes",
    "may_ask_for_tensors_classes",
    "put_back",
    "setters",
    "states_now",
    "version_of",
    "write_data",
]
