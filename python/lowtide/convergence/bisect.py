"""The first op of a step that the engine computes otherwise than PyTorch does.

Every value of the engine is compared with what PyTorch makes of the engine's own values before it, in float64: the
errors of an op's inputs play no part then, and rounding does not grow. Where the engine fuses, the ops inside are
PyTorch's. A value is wrong if it is farther off than rounding of its dtype may be (ROUNDING), and much farther than
PyTorch itself is in the value's own dtype: sums that cancel leave nothing but rounding on both sides.
"""

from dataclasses import dataclass, field

import torch

from lowtide.utils.hooks.summary_file import BACKWARD, FORWARD

from .captured_graph import CapturedGraph
from .compare import GROWTH
from .distance import ROUNDING, distance
from .engine_region import Region, find_region
from .engine_step import loss_alone, run_step
from .local_values import LocalValues
from .module_step import capture_differs


@dataclass
class Found:
    """A value that is wrong."""

    name: str  # in the captured graph
    direction: str
    engine_name: str  # in the training graph, empty for the gradient of an input that has none of its own
    error: float  # relative to the largest element of what it should be
    rounding: float  # how far off PyTorch is, in the value's dtype
    limit: float
    calls: list  # of the captured graph: that make it, or that its gradient comes from
    engine: torch.Tensor
    eager: torch.Tensor  # of a run in PyTorch from the start
    eager_error: float  # from that
    region: Region | None = None  # where the engine makes it


@dataclass
class Bisection:
    graph: CapturedGraph
    step: object  # EngineStep
    eager: LocalValues
    engine_forward: dict  # captured name → tensor of the engine
    engine_backward: dict
    names: dict  # name in the training graph → (direction, captured name)
    engine_names: dict  # the reverse; several captured values may have one name
    compared: dict = field(default_factory=lambda: {FORWARD: 0, BACKWARD: 0})
    largest: dict = field(default_factory=lambda: {FORWARD: 0.0, BACKWARD: 0.0})  # error that is rounding
    right: set = field(default_factory=set)  # names in the training graph of values that were compared and are right
    found: list = field(default_factory=list)  # in order of execution
    capture_differs: str = ""  # in what the captured graph is not the module: then the engine runs something else

    def eager_tensor(self, direction, name):
        return self.eager.value(name) if direction == FORWARD else self.eager.gradient(name)

    def error_from_eager(self, engine_name):
        """Of a value of the engine; None where PyTorch has none that it stands for."""
        if engine_name not in self.names:
            return None
        eager = self.eager_tensor(*self.names[engine_name])
        return None if eager is None else distance(self.step.values[engine_name], eager)


def bisect(example, session, stop=True):
    """A Bisection of one step of an observed session. With `stop`, `found` holds the first value alone, with the region
    that makes it."""
    captured = CapturedGraph(session.functional_graph(), example.captured.functions, example.size)
    step = run_step(example, session, loss_alone)
    start = step.given
    sent = loss_alone(step.outputs, session.grad_outputs)
    incoming = {
        captured.outputs[index]: gradient
        for index, gradient in zip(session.grad_outputs, sent, strict=True)
        if gradient is not None
    }
    forward, backward, engine_names = _known(captured, step)
    names = {engine: known for known, engine in reversed(engine_names.items())}
    eager = LocalValues(captured, start, incoming)
    result = Bisection(captured, step, eager, forward, backward, names, engine_names)
    known = (captured, start, incoming, forward, backward)
    exact, native, coarse = (LocalValues(*known, floats=floats) for floats in (torch.float64, None, torch.float32))
    _walk(result, exact, Rounding(native, coarse), stop)
    _finish_eager(result)
    result.capture_differs = capture_differs(example, session.grad_outputs, sent, eager, captured)
    for found in result.found[: 1 if stop else 0]:
        if found.engine_name:
            found.region = find_region(step, found.engine_name, result.right, example.symbols())
    return result


class Rounding:
    """How far PyTorch itself is off in a value's dtype. In float64, which is taken to be exact, it is as much as in
    float32, but for the digits between them."""

    def __init__(self, native, coarse):
        self._native, self._coarse = native, coarse

    def of(self, name, direction, dtype, expected):
        values = self._coarse if dtype == torch.float64 else self._native
        found = values.made(name) if direction == FORWARD else values.summed(name)
        if found is None:
            return 0.0
        return distance(found, expected) * (2.0**-29 if dtype == torch.float64 else 1.0)


def _known(captured, step):
    """What the engine made: forward values and gradients by captured name, and their names in the engine."""
    forward, backward, engine_names = {}, {}, {}
    for name, value, gradient in step.session.value_map:
        if name in captured.maker and value in step.values:
            forward[name] = step.values[value]
            engine_names[FORWARD, name] = value
        if name in captured.needing and gradient in step.values:
            backward[name] = step.values[gradient]
            engine_names[BACKWARD, name] = gradient
    backward.update(step.gradients)
    training = step.session.training_graph()
    for entry in training.outputs():
        if entry["kind"] == "gradient":
            engine_names[BACKWARD, training.value_name(entry["target"])] = training.value_name(entry["value"])
    return forward, backward, engine_names


def _walk(result, exact, rounding, stop):
    graph = result.graph
    for call in graph.calls:
        for name in filter(None, call.outputs):
            result.eager.value(name)
            exact.value(name)
            if name in result.engine_forward and _judge(result, FORWARD, name, exact.made, rounding) and stop:
                return
    for call in reversed(graph.calls):
        for name in filter(None, call.outputs):
            if _backward(result, name, exact, rounding) and stop:
                return
    for name in graph.trainable:
        if _backward(result, name, exact, rounding) and stop:
            return


def _finish_eager(result):
    """All values and gradients of eager, in order."""
    for call in result.graph.calls:
        for name in filter(None, call.outputs):
            result.eager.value(name)
    for name in [name for call in reversed(result.graph.calls) for name in call.outputs if name] + result.graph.inputs:
        if name in result.graph.needing:
            result.eager.gradient(name)


def _backward(result, name, exact, rounding):
    if name not in result.graph.needing:
        return False
    result.eager.gradient(name)
    exact.gradient(name)
    return name in result.engine_backward and _judge(result, BACKWARD, name, exact.summed, rounding)


# Anybody's choice: which of several equal elements comes first, and what fresh memory holds.
_PLACES = ("sort", "argsort", "topk", "max.dim", "min.dim", "argmax", "argmin")
_FRESH = ("empty", "new_empty")


def _is_free(call, dtype):
    name = call.target.removeprefix("aten::")
    return name.startswith(_FRESH) or (name.startswith(_PLACES) and not dtype.is_floating_point)


def _judge(result, direction, name, exact, rounding):
    forward = direction == FORWARD
    engine = (result.engine_forward if forward else result.engine_backward)[name]
    engine_name = result.engine_names.get((direction, name), "")
    expected = exact(name)
    if expected is None:  # nothing flows into it
        expected = torch.zeros_like(engine)
    eager = result.eager_tensor(direction, name)
    eager = torch.zeros_like(engine) if eager is None else eager
    eager_error = distance(engine, eager)
    if forward and _is_free(result.graph.maker[name], engine.dtype):
        result.right.add(engine_name)
        return False
    result.compared[direction] += 1
    limit = ROUNDING.get(engine.dtype, 0.0)
    error = distance(engine, expected)
    if error <= limit:
        result.largest[direction] = max(result.largest[direction], error)
        result.right.add(engine_name)
        return False
    own = rounding.of(name, direction, engine.dtype, expected)
    if error <= GROWTH * own:
        result.right.add(engine_name)
        return False
    calls = [result.graph.maker[name]] if forward else [call for call in result.graph.calls if name in call.inputs]
    result.found.append(Found(name, direction, engine_name, error, own, limit, calls, engine, eager, eager_error))
    return True
