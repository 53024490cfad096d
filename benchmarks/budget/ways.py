"""The ways to run a model's training step that take turns in one process, and how they do."""

import copy
import statistics
import sys
import time
from dataclasses import dataclass, field

import torch
from budgeted import BudgetedStep, give_back_memory, nearest_rung
from memory_counter import MemoryCounter
from modes import NotApplicable, find_mode

SHARES = (0.8, 0.6)  # budgets, of the peak without one
ADDED = 0.1  # the plan that is predicted to add this part of the time
OF_EAGER = {"resnet50": 0.45}  # a budget, of eager's peak
OF_EAGER_ELSE = 0.25


@dataclass
class Way:
    name: str
    call: callable
    model: torch.nn.Module
    prepare: callable = lambda: None  # before its turn
    facts: dict = field(default_factory=dict)
    times_ms: list = field(default_factory=list)  # of each round
    peak_bytes: int = 0


def ways_of(model, model_name, batch, names):
    """Those of `names` that there are for this model: eager, checkpoint, default (the engine, all outputs), loss (the
    engine, the loss alone), budgets (of that) and asked (a budget that is a share of eager's peak)."""
    eager = Way("eager", loss_of(model), model)
    if "eager" in names:
        yield eager
    if "checkpoint" in names:
        try:
            twin = find_mode("checkpoint").wrap(copy.deepcopy(model))
            yield Way("checkpoint", loss_of(twin), twin)
        except NotApplicable as reason:
            print(f"checkpoint: {reason}", file=sys.stderr)
    if "default" in names:
        engine = find_mode("lowtide").wrap(model)
        engine(**batch).loss.backward()
        agent = engine._training_manager.last_agent
        planned = agent.session.memory(agent.symbol_values())
        yield Way("default", loss_of(engine), model, facts={"planned_peak_bytes": planned["planned_peak_bytes"]})
    asked_bytes = None
    if "asked" in names:
        asked_bytes = int(OF_EAGER.get(model_name, OF_EAGER_ELSE) * counted_peak(eager, batch))
    if "loss" in names or "budgets" in names or asked_bytes:
        yield from budget_ways(model, BudgetedStep(model, batch), names, asked_bytes)


def budget_ways(model, step, names, asked_bytes):
    def at(name, rung, budget_bytes):
        found = step.rungs[rung]
        facts = {"budget_bytes": budget_bytes, "planned_peak_bytes": found["peak_bytes"]}
        facts |= {key: found[key] for key in ("predicted_ms", "extra_ms", "bound_extra_ms")}
        if rung == 0:
            facts |= {key: step.memory_without[key] for key in ("gradient_bytes", "external_bytes")}
        return Way(name, step, model, lambda: step.set_budget(budget_bytes), facts)

    if "loss" in names:
        yield at("loss", 0, 0)
    first, last = step.rungs[0], step.rungs[-1]
    if asked_bytes:
        asked_bytes = max(asked_bytes, last["peak_bytes"])
        yield at("asked", step.rung_within(asked_bytes), asked_bytes)
    if "budgets" not in names:
        return
    taken = {0}
    wanted = [(f"budget {share:.0%}", round(share * first["peak_bytes"])) for share in SHARES]
    wanted = [(name, budget) for name, budget in wanted if budget >= last["peak_bytes"]]
    wanted.append((f"budget, {ADDED:+.0%} time", step.rungs[nearest_rung(step.rungs, ADDED)]["peak_bytes"]))
    wanted.append(("budget, floor", last["peak_bytes"]))
    for name, budget_bytes in wanted:
        rung = step.rung_within(budget_bytes)
        if rung not in taken:
            taken.add(rung)
            yield at(name, rung, budget_bytes)


def loss_of(module):
    return lambda **batch: module(**batch).loss


def warm_up(ways, batch):
    """What is made once, is."""
    for way in ways:
        way.prepare()
        give_back_memory(way.model)
        timed(way, batch)


def counted_peak(way, batch):
    """Bytes, of its second step."""
    counter = MemoryCounter()
    for _ in range(2):
        give_back_memory(way.model)
        counter.restart()
        timed(way, batch)
    return counter.peak_above()


def take_turns(ways, batch, rounds, steps):
    """Each round each way has its turn: what is kept from other turns is given back, a step is counted, `steps` more
    are timed."""
    counter = MemoryCounter()
    for number in range(rounds):
        for way in ways:
            way.prepare()
            give_back_memory(way.model)
            counter.restart()
            timed(way, batch)
            way.peak_bytes = max(way.peak_bytes, counter.peak_above())
            times = [timed(way, batch) for _ in range(steps)]
            way.times_ms.append(times)
            print(f"round {number + 1}/{rounds}  {way.name}: {statistics.median(times):.0f} ms", file=sys.stderr)
        sys.stderr.flush()


def timed(way, batch):
    way.model.zero_grad(set_to_none=True)
    begin = time.perf_counter()
    way.call(**batch).backward()
    return (time.perf_counter() - begin) * 1e3
