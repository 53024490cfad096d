"""Traced training steps of a model, step by step of the plan."""

import json
import statistics
import time

import torch
from models import build
from modes import find_mode

WARM_UP = 2  # the first step exports and plans, the second makes what is kept between steps


def measure(model_name, mode_name, steps):
    """{"step_ms": of a step from zero_grad to gradients, "rows": [a dict for each step of the plan, in its order]}."""
    model, make_batch = build(model_name)
    return measure_model(model, make_batch(), mode_name, steps)


def measure_model(model, batch, mode_name, steps):
    mode = find_mode(mode_name)
    if mode.precision == "bf16":
        model.to(torch.bfloat16)
        batch = {name: x.to(torch.bfloat16) if x.is_floating_point() else x for name, x in batch.items()}
    wrapped = mode.wrap(model)

    def step():
        model.zero_grad(set_to_none=True)
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=mode.precision == "autocast"):
            loss = wrapped(**batch).loss
        loss.backward()
        return (time.perf_counter() - start) * 1e3

    for _ in range(WARM_UP):
        step()
    agent = wrapped._last_agent()
    agent.session.start_trace()
    step_ms = statistics.median(step() for _ in range(steps))
    events = json.loads(agent.session.stop_trace())["traceEvents"]
    return {"step_ms": step_ms, "rows": rows_of(agent, events, steps)}


def rows_of(agent, events, steps):
    """Of a step that runs several times (blocks of rows) the sum of them counts."""
    durations, kernels = {}, {}
    for event in events:
        durations.setdefault(event["args"]["step"], []).append(event["dur"] / 1e3)
        kernels[event["args"]["step"]] = event["cat"]
    sizes = agent.symbol_values()
    costs = {row[0]: row[1:] for row in agent.session.step_prices(sizes)}
    picture = json.loads(agent.session.arena_picture(sizes))
    told, handed = picture["steps"], hands_on(picture["buffers"])
    rows = []
    for number, times in sorted(durations.items()):
        times = times[: len(times) // steps * steps]
        each = len(times) // steps
        op, kernel_class, dtype, flops, moved = costs.get(number, ("(no kernel)", "free", "", 0, 0))[:5]
        rows.append(
            {
                "step": number,
                "op": op,
                "kernel": kernels[number],
                "class": kernel_class,
                "dtype": dtype,
                "module": told[number]["module"],
                "line": told[number]["line"],
                "made": told[number]["made"],
                "ms": statistics.median(sum(times[i * each : (i + 1) * each]) for i in range(steps)) if each else 0.0,
                "flops": flops,
                "bytes": moved,
                "hands_on": handed.get(number, []),
            }
        )
    return rows


def hands_on(buffers):
    """{step: [(the one step that reads what it wrote, bytes)]} of what nobody else reads."""
    found = {}
    for buffer in buffers:
        if buffer["kind"] != "temporary":
            continue
        writes = sorted(buffer["writes"])
        for write, next_write in zip(writes, [*writes[1:], float("inf")], strict=True):
            readers = [step for step in buffer["reads"] if write < step <= next_write]
            if len(readers) == 1:
                found.setdefault(write, []).append((readers[0], buffer["bytes"]))
    return found
