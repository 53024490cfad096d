"""`lowtide plan --measure`: steps of the frontier's plans, one round of all after another."""

import statistics
import time

from lowtide.convergence.engine_step import loss_alone
from lowtide.ortmodule.custom_functions import CallHandler

from .model import BadInput

_MOST_RUNGS = 8
_ROUNDS = 5  # after one that warms up


def measure_rungs(model, session, rungs, knee, values):
    """The median milliseconds of forward and backward by rung; None of those that are not run: ends, knee and some
    between them are."""
    if model.call is None:
        raise BadInput("--measure: steps take a model, module:function")
    example = [model.example[name] for name in session.symbols]
    if example != list(values):
        sizes = ", ".join(f"{name}={size}" for name, size in zip(session.symbols, example, strict=True))
        raise BadInput(f"--measure: steps run at the sizes of the example, {sizes}: expected no other --dims")
    session.set_call_handler(CallHandler(model.call.captured.functions))
    tensors = model.call.tensors()
    taken = {rung: [] for rung in _spread(len(rungs), knee)}
    for _ in range(1 + _ROUNDS):
        for rung, times in taken.items():
            session.set_memory_budget(rungs[rung]["peak_bytes"] if rung else 0)
            times.append(_step_ms(session, tensors))
    session.set_memory_budget(0)
    return [statistics.median(taken[i][1:]) if i in taken else None for i in range(len(rungs))]


def _step_ms(session, tensors):
    begin = time.perf_counter()
    outputs, pending = session.forward(tensors, 0, True)
    incoming = loss_alone(outputs, session.grad_outputs)
    saved, _ = session.saved_by(pending.plan)
    session.backward(pending, incoming, [tensors[index] for index in saved])
    return (time.perf_counter() - begin) * 1e3


def _spread(count, knee):
    places = {round(i * (count - 1) / (_MOST_RUNGS - 1)) for i in range(_MOST_RUNGS)}
    return sorted({*places, knee})
