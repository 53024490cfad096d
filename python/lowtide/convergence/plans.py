"""Two plans of the engine for one graph: every value in both has to be the same to the bit."""

from dataclasses import dataclass

import torch

from lowtide.utils.hooks.summary_file import BACKWARD, FORWARD

from .distance import same_bits
from .engine_region import EngineOp
from .engine_step import loss_alone, make_session, run_step

_AGAIN = "_recompute"


@dataclass
class Parted:
    """A value that the plans do not agree on."""

    name: str
    direction: str
    op: EngineOp  # of the second plan
    first: torch.Tensor
    second: torch.Tensor


@dataclass
class PlanComparison:
    compared: int  # values in both plans
    again: int  # of these: values that the second plan makes a second time
    gradients: int  # handed to the caller
    parted: Parted | None  # the first, in the second plan's order
    notices: list  # of the memory optimizer


def compare_plans(example, memory, random_key=0):
    """The plan without a memory configuration and the one with `memory` (keywords of Session). A fault that tests ask
    for is one of the second plan."""
    before = run_step(example, make_session(example, {}, fault=("", 1.0)), loss_alone, random_key)
    session = make_session(example, memory)
    after = run_step(example, session, loss_alone, random_key)
    result = PlanComparison(0, 0, len(after.gradients), None, list(dict.fromkeys(session.memory_notices())))
    for name, second in after.values.items():
        original = name.partition(_AGAIN)[0]
        first = before.values.get(name)
        if first is None and original in before.values:
            first = before.values[original]
            result.again += 1
        if first is None:
            continue
        result.compared += 1
        if not same_bits(first, second):
            result.parted = _parted(session, name, first, second)
            return result
    for name, second in after.gradients.items():
        if not same_bits(before.gradients[name], second):
            op = EngineOp("gradient", [name], [], "")
            result.parted = Parted(name, BACKWARD, op, before.gradients[name], second)
            return result
    return result


def _parted(session, name, first, second):
    direction, graph = FORWARD, session.training_graph()
    for node in graph.nodes():
        outputs, inputs = (
            [graph.value_name(value) for value in node[side] if value is not None] for side in ("outputs", "inputs")
        )
        if node["op"] == "YieldOp":
            direction = BACKWARD
        if name in outputs:
            return Parted(
                name, direction, EngineOp(node["target"] or node["op"], outputs, inputs, node["origin"]), first, second
            )
    raise KeyError(name)
