"""A step on many processes, as its plan has it: kernels run one after another for as long as they are predicted to,
collectives travel one after another beside them, and a step of the plan that waits, waits."""

import re
from dataclasses import dataclass, field

_ITEM_BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2}
# As DistributedDataParallel closes its buckets of gradients.
_FIRST_BUCKET_BYTES, _BUCKET_BYTES = 1 << 20, 25 << 20
_REGION = re.compile(r'region "[^"]*" \[(?P<gradients>[\d ]*)\]')
_STEP = re.compile(
    r'step (?P<kind>\w+) "[^"]*" \[(?P<inputs>[-\d ]*)\] \[[-\d ]*\] (?P<index>-?\d+) "(?P<target>[^"]*)"'
)


@dataclass
class Step:
    kind: str  # "run", "begin", "wait", "call"
    ms: float = 0  # of a kernel
    size_bytes: int = 0  # of a collective: of the whole message
    name: str = ""  # of what travels
    index: int = -1  # of a wait: the step that began


@dataclass
class Region:
    """Steps between which the host has nothing to do, and the gradients that it is handed then."""

    steps: list = field(default_factory=list)
    gradients: list = field(default_factory=list)


@dataclass
class Message:
    name: str
    size_bytes: int
    begins_ms: float
    ends_ms: float
    travels_ms: float
    waited_ms: float = 0


@dataclass
class Simulated:
    """Of one process; all do the same."""

    kernels_ms: float = 0
    step_ms: float = 0
    messages: list = field(default_factory=list)

    @property
    def communication_ms(self):
        return sum(message.travels_ms for message in self.messages)

    @property
    def hidden(self):
        """The share of communication that no kernel waits for."""
        waited = self.step_ms - self.kernels_ms
        return 1 - waited / self.communication_ms if self.communication_ms else 1.0


def regions_of(session, values):
    """Of the plan that serves calls of these sizes: a list of Region, forward first."""
    prices = {price[0]: price for price in session.step_prices(values)}
    regions, names, operands, number = [], [], [], 0
    for line in session.program_text().splitlines():
        if line.startswith("buffer "):
            names.append(line.split('"')[1])
        elif line.startswith("operand "):
            operands.append(names[int(line.split()[1])])
        elif found := _REGION.match(line):
            regions.append(Region(gradients=[int(gradient) for gradient in found["gradients"].split()]))
        elif found := _STEP.match(line):
            regions[-1].steps.append(_step(found, prices.get(number), operands))
            number += 1
    return regions


def _step(found, price, operands):
    kind, ms = found["kind"], price[7] if price else 0
    if kind == "wait":
        return Step("wait", index=int(found["index"]))
    if price and found["target"] in ("AllGather", "ReduceScatter"):
        size = int(price[4]) * _ITEM_BYTES[price[3]]  # the cost of a collective counts elements of the whole
        name = f"{found['target']} {operands[int(found['inputs'].split()[0])]}"
        return Step("begin" if kind == "begin" else "call", size_bytes=size, name=name)
    return Step("run", ms)


class Simulation:
    """Of one step, as it goes on."""

    def __init__(self, network, ranks):
        self._network, self._ranks = network, ranks
        self._now = self._free = 0.0  # of kernels, of the network
        self.found = Simulated()

    def run(self, regions, gradient_bytes=None, price=None):
        """`gradient_bytes`: of each gradient, where who is handed them reduces them by buckets; `price`: of a bucket,
        Network.reduce_ms or gather_ms."""
        begun, number = {}, 0
        buckets = iter(_buckets(regions, gradient_bytes)) if gradient_bytes else iter(())
        left, reduced = next(buckets, None), []
        for region in regions:
            for step in region.steps:
                if step.kind == "wait":
                    self._wait(begun[step.index])
                elif step.kind == "run":
                    self._now += step.ms / self._network.kernels_faster
                    self.found.kernels_ms += step.ms / self._network.kernels_faster
                else:
                    begun[number] = self._begin(step.name, step.size_bytes, self._network.gather_ms)
                    if step.kind == "call":
                        self._wait(begun[number])
                number += 1
            reduced += region.gradients
            while left is not None and len(reduced) >= left[0]:
                begun[f"bucket {left[0]}"] = self._begin(left[1], left[2], price)
                left = next(buckets, None)
        for message in begun.values():
            self._wait(message)
        self.found.step_ms = self._now
        return self.found

    def _begin(self, name, size_bytes, price):
        travels = price(self._ranks, size_bytes)
        begins = max(self._now, self._free)
        self._free = begins + travels
        self.found.messages.append(Message(name, size_bytes, begins, self._free, travels))
        return self.found.messages[-1]

    def _wait(self, message):
        if message.ends_ms > self._now:
            message.waited_ms += message.ends_ms - self._now
            self._now = message.ends_ms


def _buckets(regions, gradient_bytes):
    """(how many gradients have left when it is full, name, bytes), in the order in which gradients leave."""
    gradients = [gradient for region in regions for gradient in region.gradients]
    found, limit, size = [], _FIRST_BUCKET_BYTES, 0
    for count, gradient in enumerate(gradients, 1):
        size += gradient_bytes[gradient]
        if size >= limit or count == len(gradients):
            found.append((count, f"bucket {len(found)}", size))
            limit, size = _BUCKET_BYTES, 0
    return found
