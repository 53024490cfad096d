"""What collectives take on a network that a file describes.

A ring of n processes gathers, or reduces and scatters, a message of b bytes in (n - 1) / n * b / bandwidth + (n - 1) *
latency: in each of n - 1 rounds every process sends one part. Reducing to all of them is both, one after the other. On
several nodes of k processes those with the same place on their nodes share a k-th of the message between nodes, and
each node does the rest inside.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from .model import BadInput

_LINK = ("gigabytes_per_second", "latency_us")
EXAMPLE = (
    '{"ranks_per_node": 8, "inside": {"gigabytes_per_second": 200, "latency_us": 4}, '
    '"between": {"gigabytes_per_second": 25, "latency_us": 15}}'
)


@dataclass(frozen=True)
class Link:
    """What one process can send at a time."""

    bytes_per_ms: float
    latency_ms: float

    def ring_ms(self, ranks, size_bytes):
        """To gather or to scatter so many bytes, which all have together."""
        return (ranks - 1) * (size_bytes / ranks / self.bytes_per_ms + self.latency_ms)


@dataclass(frozen=True)
class Network:
    inside: Link
    between: Link | None = None  # of nodes; None: there is one
    ranks_per_node: int = 0
    kernels_faster: float = 1.0  # than on the machine whose prices the plan has

    def check(self, ranks):
        if self.between is not None and ranks > self.ranks_per_node and ranks % self.ranks_per_node:
            raise BadInput(f"--ranks: {ranks} processes do not fill nodes of {self.ranks_per_node}")

    def gather_ms(self, ranks, size_bytes):
        """All-gather of so many bytes, or reduce-scatter."""
        if self.between is None or ranks <= self.ranks_per_node:
            return self.inside.ring_ms(ranks, size_bytes)
        nodes, inside = ranks // self.ranks_per_node, self.inside.ring_ms(self.ranks_per_node, size_bytes)
        return self.between.ring_ms(nodes, size_bytes / self.ranks_per_node) + inside

    def reduce_ms(self, ranks, size_bytes):
        """All-reduce."""
        return 2 * self.gather_ms(ranks, size_bytes)


def read_network(path):
    """BadInput, which names the entry, for anything but what EXAMPLE shows; "inside" alone is a network of one node or
    of equal links."""
    try:
        told = json.loads(Path(path).read_text())
    except OSError as error:
        raise BadInput(f"--network: {error}") from None
    except ValueError as error:
        raise BadInput(f"--network: {path} is no JSON: {error}") from None
    where = f"--network: {path}"
    known = ("ranks_per_node", "inside", "between", "kernels_faster")
    _check_names(where, told, known, ("inside",))
    if ("between" in told) != ("ranks_per_node" in told):
        raise BadInput(f'{where}: "between" and "ranks_per_node" come together, as in {EXAMPLE}')
    between = _link(where, "between", told["between"]) if "between" in told else None
    per_node = told.get("ranks_per_node", 0)
    if between is not None and (type(per_node) is not int or per_node < 1):
        raise BadInput(f'{where}: "ranks_per_node" is {json.dumps(per_node)}, expected a count of processes')
    faster = _number(where, "kernels_faster", told.get("kernels_faster", 1.0))
    return Network(_link(where, "inside", told["inside"]), between, per_node, faster)


def _link(where, name, told):
    _check_names(f'{where}: "{name}"', told, _LINK, _LINK)
    speed = _number(where, f"{name}.gigabytes_per_second", told["gigabytes_per_second"])
    latency = _number(where, f"{name}.latency_us", told["latency_us"], may_be_zero=True)
    return Link(speed * 1e6, latency * 1e-3)


def _check_names(where, told, known, needed):
    if not isinstance(told, dict):
        raise BadInput(f"{where} is no object, expected one as in {EXAMPLE}")
    if unknown := [name for name in told if name not in known]:
        raise BadInput(f'{where} has "{unknown[0]}", expected {", ".join(known)}')
    if missing := [name for name in needed if name not in told]:
        raise BadInput(f'{where} lacks "{missing[0]}", as in {EXAMPLE}')


def _number(where, name, value, may_be_zero=False):
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (0 <= value < float("inf")) or (value == 0 and not may_be_zero):
        raise BadInput(f'{where}: "{name}" is {json.dumps(value)}, expected a number above 0')
    return float(value)
