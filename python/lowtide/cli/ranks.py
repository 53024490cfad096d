"""`lowtide plan MODEL --ranks 8,64,1024 --network FILE`: what a step takes on so many processes, none of which is
there."""

from dataclasses import dataclass
from math import prod

from lowtide.capture import import_divided
from lowtide.distributed import as_if_divided, as_if_partitioned
from lowtide.errors import OutOfMemory
from lowtide.ortmodule.budget import format_bytes

from .model import BadInput, symbol_values
from .simulate import Simulation, regions_of

_MOST_MESSAGES = 5  # shown
_WAYS = {"ddp": None, "fsdp2": as_if_divided, "zero3": as_if_partitioned}  # how parameters are divided


@dataclass
class Told:
    """Of one way on so many processes."""

    ranks: int
    way: str  # "ddp", "fsdp2", "zero3"
    simulated: object
    peak_bytes: int  # planned, of a step
    parameter_bytes: int  # of one process
    sent_bytes: int  # by one process

    def for_programs(self):
        found = self.simulated
        return {
            "ranks": self.ranks,
            "way": self.way,
            "step_ms": found.step_ms,
            "kernels_ms": found.kernels_ms,
            "communication_ms": found.communication_ms,
            "hidden": found.hidden,
            "peak_bytes": self.peak_bytes,
            "parameter_bytes": self.parameter_bytes,
            "sent_bytes": self.sent_bytes,
            "messages": [vars(message) for message in found.messages],
        }


@dataclass
class Refused:
    """Of one way on so many processes: no plan keeps within the budget."""

    ranks: int
    way: str
    why: str

    def for_programs(self):
        return {"ranks": self.ranks, "way": self.way, "refused": self.why}


def parse_ranks(text):
    """[8, 64] of "8,64"."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() and 2 <= int(word) <= 1 << 20 for word in words):
        raise BadInput(f"--ranks is '{text}', expected counts of processes from 2 on, as in 8,64,1024")
    return [int(word) for word in words]


def simulate(model, dims, counts, network, budget=None):
    """A Told for each way and count, or Refused. `dims`: as symbol_values takes them, of what one process is given.
    `budget`: a Budget of the plan of each process; what DistributedDataParallel has beside it is not in it."""
    if model.call is None:
        raise BadInput("--ranks takes a model, module:function: a graph does not tell its layers")
    for ranks in counts:
        network.check(ranks)
    options = {}
    if budget is not None:
        options = {"memory_budget": budget.bytes} if budget.bytes else {"memory_budget_fraction": budget.fraction}
    session = model.plan(options)
    values = symbol_values(model, session.symbols, dims)
    for ranks in counts:
        for way in _WAYS:
            try:
                if way == "ddp":
                    yield _data_parallel(model, session, values, network, ranks)
                else:
                    yield _divided(model, dims, network, ranks, way, options)
            except OutOfMemory as error:
                yield Refused(ranks, way, str(error))


def _data_parallel(model, session, values, network, ranks):
    sizes = _whole_gradients(model, session, model.call.captured.sources)
    found = Simulation(network, ranks).run(regions_of(session, values), sizes, network.reduce_ms)
    whole = sum(map(_bytes, model.call.module.parameters()))
    # DistributedDataParallel has each gradient in a bucket too.
    peak = session.memory(values)["planned_peak_bytes"] + sum(sizes)
    sent = sum(2 * (ranks - 1) * message.size_bytes // ranks for message in found.messages)
    return Told(ranks, "ddp", found, peak, whole, sent)


def _divided(model, dims, network, ranks, way, options):
    module, call, captured = model.call.module, model.call.call, model.call.captured
    shard_of, owners = _WAYS[way](module, ranks)
    divided = import_divided(captured, module, call, (shard_of, owners))
    session = model.with_graph(divided.graph).plan(options)
    values = symbol_values(model, session.symbols, dims)
    # Gradients that leave whole are reduced by buckets, as DeepSpeed does it.
    sizes = _whole_gradients(model, session, divided.sources) if way == "zero3" else None
    found = Simulation(network, ranks).run(regions_of(session, values), sizes, network.gather_ms)
    parts = [(parameter, shard_of(parameter, owners)) for parameter in module.parameters()]
    own = sum(
        _bytes(parameter) if shard is None else prod(shard.part_shape) * parameter.element_size()
        for parameter, shard in parts
    )
    sent = sum((ranks - 1) * message.size_bytes // ranks for message in found.messages)
    return Told(ranks, way, found, session.memory(values)["planned_peak_bytes"], own, sent)


def _whole_gradients(model, session, sources):
    """Bytes of each gradient that leaves the step, for others to reduce; that of an input of the call is nobody's."""
    parameters = dict(model.call.module.named_parameters())
    targets = [sources[index] for index in session.gradient_targets]
    return [_bytes(parameters[target.paths[0]]) if target.kind == "param" else 0 for target in targets]


def _bytes(parameter):
    return parameter.numel() * parameter.element_size()


def table(name, found):
    """Lines of text."""
    yield f"{name}: a step as predicted, of each process"
    yield (
        f"{'processes':>9} {'way':>6} {'step ms':>10} {'kernels ms':>11} {'network ms':>11} {'hidden':>7} "
        f"{'planned peak':>13} {'parameters':>12} {'sent':>12}"
    )
    for told in found:
        if isinstance(told, Refused):
            yield f"{told.ranks:>9} {told.way:>6} {told.why.splitlines()[0]}"
            continue
        each = told.simulated
        yield (
            f"{told.ranks:>9} {told.way:>6} {each.step_ms:>10.2f} {each.kernels_ms:>11.2f} "
            f"{each.communication_ms:>11.2f} {each.hidden:>7.0%} {format_bytes(told.peak_bytes):>13} "
            f"{format_bytes(told.parameter_bytes):>12} {format_bytes(told.sent_bytes):>12}"
        )
    for told in (told for told in found[-3:] if isinstance(told, Told)):
        waited = sorted(told.simulated.messages, key=lambda message: -message.waited_ms)[:_MOST_MESSAGES]
        yield f"what kernels wait for longest, {told.way} on {told.ranks}:"
        for message in waited:
            if message.waited_ms > 0:
                yield (
                    f"  {message.name}: {format_bytes(message.size_bytes)}, begins at {message.begins_ms:.2f} ms, "
                    f"travels {message.travels_ms:.2f} ms, {message.waited_ms:.2f} of them waited for"
                )
