"""Statistics of values as nodes: what torch.export sees of an inspected tensor, and which of them a graph has."""

import contextlib
import threading
from dataclasses import dataclass

import torch

_tracing = threading.local()  # .table: the Inspections of the export that this thread runs
_library = torch.library.Library("lowtide", "FRAGMENT")
_library.define("inspect(Tensor x, int record) -> ()")
# The exporter would drop a call without results.
torch.fx.node.has_side_effect(torch.ops.lowtide.inspect.default)


@torch.library.register_fake("lowtide::inspect", lib=_library)
def _trace_inspect(x, record):
    return None


@dataclass
class Inspection:
    """One inspected value. `sink.record(step, inspection, direction, statistics)` takes what is found of it,
    `sink.end_records(step)` follows the last record of a half."""

    sink: object
    name: str
    depth: int


class Inspections(list):
    """Of one captured graph; an Inspect node's `record` is an index into it."""

    clock = None  # the subscription: `current_step`, and `end_step()`
    steps = 0  # that end in one call

    def add(self, tensor, inspection):
        self.append(inspection)
        torch.ops.lowtide.inspect(tensor, len(self) - 1)

    def forward_done(self, found):
        """Hands on what the forward half of a call inspected: pairs (record, statistics). Returns the step, for the
        backward half."""
        if self.clock is None:
            return 0
        step = self.clock.current_step
        self._hand_on(step, "forward", sorted(found, key=lambda pair: pair[0]))
        for _ in range(self.steps):
            self.clock.end_step()
        return step

    def backward_done(self, step, found):
        """The same for the backward half. Its gradients come in the order of PyTorch's autograd: that in which forward
        made the values, from the last to the first."""
        self._hand_on(step, "backward", found)

    def _hand_on(self, step, direction, found):
        sinks = {}
        for record, statistics in found:
            inspection = self[record]
            inspection.sink.record(step, inspection, direction, statistics)
            sinks[id(inspection.sink)] = inspection.sink
        for sink in sinks.values():
            sink.end_records(step)


def current_inspections():
    """Of the export that this thread runs; None outside of one."""
    return getattr(_tracing, "table", None)


@contextlib.contextmanager
def inspections_as_nodes():
    """While active, inspected tensors become nodes; yields the table of them."""
    outer, _tracing.table = current_inspections(), Inspections()
    try:
        yield _tracing.table
    finally:
        _tracing.table = outer
