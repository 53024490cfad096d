"""memory_budget, memory_budget_total and LOWTIDE_MEMORY_BUDGET on a wrapper: who wins, what is kept, what refused."""

import copy
import gc
import json
import logging
import pickle
import re

import pytest
import torch
from activations import build

from lowtide.errors import InvalidArgument, OutOfMemory
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule
from lowtide.ortmodule.budget import Budget, asked_budget
from lowtide.ortmodule.options import memory_options
from lowtide.ortmodule.resident import Resident


def train(level=LogLevel.ERROR, **options):
    """(wrapper, loss, gradients) after a step from one seed."""
    model, x = build()
    wrapped = ORTModule(model, DebugOptions(level), **options)
    loss = wrapped(x)
    loss.backward()
    assert wrapped.fallback_reason is None
    return wrapped, loss.detach(), [parameter.grad for parameter in model.parameters()]


@pytest.fixture(scope="module")
def default():
    wrapped, loss, gradients = train()
    return wrapped.memory_report()["planned_peak_bytes"], loss, gradients


def same_bits(found, expected):
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("part", [1.0, 0.8, 0.5])
def test_a_part_of_the_plan_without_a_budget(default, part):
    peak, loss, gradients = default
    wrapped, found, found_gradients = train(memory_budget=part)
    assert wrapped.memory_report()["planned_peak_bytes"] <= part * peak
    assert torch.equal(found, loss) and same_bits(found_gradients, gradients)  # dropout on


def test_bytes_and_the_environment(default, monkeypatch):
    budget = int(0.6 * default[0])
    for options in ({"memory_budget": budget}, {"memory_budget": f"{budget} B"}):
        assert train(**options)[0].memory_report()["planned_peak_bytes"] <= budget
    monkeypatch.setenv("LOWTIDE_MEMORY_BUDGET", str(budget))
    assert train()[0].memory_report()["planned_peak_bytes"] <= budget
    assert train(memory_budget=1.0)[0].memory_report()["planned_peak_bytes"] == default[0], "the argument wins"


def test_what_cannot_be_kept_names_the_least(caplog):
    with pytest.raises(OutOfMemory, match=r"budget of 1,000 bytes: the least that one needs .* is \d"):
        train(LogLevel.WARNING, memory_budget=1000)
    assert not [record for record in caplog.records if record.name == "lowtide"], "said once, by the error"


@pytest.mark.parametrize("name", ["memory_budget", "memory_budget_total"])
def test_mistakes_are_told_where_the_module_is_wrapped(name, monkeypatch):
    layer = torch.nn.Linear(2, 2)
    with pytest.raises(InvalidArgument, match=f"{name} is '12 apples', of an unknown unit 'apples': expected bytes"):
        ORTModule(layer, **{name: "12 apples"})
    with pytest.raises(InvalidArgument, match="memory_budget is 5, memory_budget_total is 6: expected one of them"):
        ORTModule(layer, memory_budget=5, memory_budget_total=6)
    with pytest.raises(InvalidArgument, match="memory_budget_total is '50%', expected bytes"):
        ORTModule(layer, memory_budget_total="50%")
    monkeypatch.setenv("LOWTIDE_MEMORY_BUDGET", "-1")
    with pytest.raises(InvalidArgument, match="LOWTIDE_MEMORY_BUDGET is '-1'"):
        ORTModule(layer)


def test_a_budget_wins_over_levels_and_configurations(default, monkeypatch, caplog):
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", "BiasGelu+:1:-1")
    options = memory_options(Budget(bytes=5000))
    assert options.for_session() == {"memory_budget": 5000} and not options.on
    with caplog.at_level(logging.WARNING, logger="lowtide"):
        wrapped, _, _ = train(level=LogLevel.WARNING, memory_budget=1.0)
    assert wrapped.memory_report()["planned_peak_bytes"] == default[0]
    said = [record.getMessage() for record in caplog.records]
    notice = (
        "the memory budget chooses the plan; ORTMODULE_MEMORY_OPT_LEVEL=1 and ORTMODULE_MEMORY_OPT_CONFIG are ignored"
    )
    assert said.count(notice) == 1
    (table,) = (text for text in said if "is accelerating your model" in text)
    row = r"Memory Budget +:   ON    :   1 of the plan without a budget; the step's plan needs [\d.]+ [kM]B"
    assert re.search(row, table)


def test_copies_have_the_budget(default):
    wrapped, _, _ = train(memory_budget=0.9)
    for twin in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert twin._training_manager._budget == Budget(fraction=0.9)


def test_evaluation_has_no_budget():
    model, x = build()
    wrapped = ORTModule(model, DebugOptions(LogLevel.ERROR), memory_budget=1000)
    with torch.no_grad():
        wrapped(x)
    assert wrapped.fallback_reason is None


# ---- memory_budget_total


def test_what_is_there_before_a_step_is_counted():
    module = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.BatchNorm1d(20))
    module.register_buffer("view_of_weight", module[0].weight.detach()[:5])  # shares its bytes
    resident = Resident(module)
    there = sum(tensor.nbytes for tensor in (*module.parameters(), *module[1].buffers()))
    assert resident.bytes() == there
    module[0].weight.grad = torch.zeros(20, 10)
    assert resident.bytes() == there + 800
    for other in (torch.optim.SGD(torch.nn.Linear(3, 3).parameters(), lr=0.1, momentum=0.9),):
        other.param_groups[0]["params"][0].grad = torch.ones(3, 3)
        other.step()
    assert resident.bytes() == there + 800, "another module's"
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    optimizer.step()
    state = sum(tensor.nbytes for entry in optimizer.state.values() for tensor in entry.values())
    assert state > 1600 and resident.bytes() == there + 800 + state
    optimizer.zero_grad()
    assert resident.bytes() == there + state
    del optimizer
    gc.collect()
    assert resident.bytes() == there


def test_nobody_is_watched_for_longer_than_the_wrapper_lives():
    from torch.optim import optimizer as torch_optimizer

    before = len(torch_optimizer._global_optimizer_post_hooks)
    wrapped = ORTModule(torch.nn.Linear(2, 2), memory_budget_total="1GiB")
    assert len(torch_optimizer._global_optimizer_post_hooks) == before + 1
    del wrapped
    gc.collect()
    assert len(torch_optimizer._global_optimizer_post_hooks) == before


def test_a_total_counts_what_is_there(default):
    model, x = build()
    there = Resident(model).bytes()
    total = there + int(1.01 * default[0])
    wrapped = ORTModule(model, DebugOptions(LogLevel.ERROR), memory_budget_total=total)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    peaks = []
    for _ in range(3):
        wrapped(x).backward()
        peaks.append(wrapped.memory_report()["planned_peak_bytes"])
        optimizer.step()
        optimizer.zero_grad()
    assert peaks[0] == default[0], "nothing but the module is there before the first step"
    with pytest.raises(OutOfMemory, match="memory_budget_total is .*, expected more than the .* there before"):
        ORTModule(model, DebugOptions(LogLevel.ERROR), memory_budget_total=there)(x)


def test_the_optimizers_state_leaves_less_for_a_step(default):
    model, x = build()
    there = Resident(model).bytes()
    peak = default[0]
    state = sum(parameter.nbytes for parameter in model.parameters())
    wrapped = ORTModule(model, DebugOptions(LogLevel.ERROR), memory_budget_total=there + peak)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    peaks = []
    for _ in range(2):
        wrapped(x).backward()
        peaks.append(wrapped.memory_report()["planned_peak_bytes"])
        optimizer.step()
        optimizer.zero_grad()
    assert peaks[0] == peak and peaks[1] <= peak - state


def test_asking(monkeypatch):
    assert asked_budget() is None
    monkeypatch.setenv("LOWTIDE_MEMORY_BUDGET", " 75% ")
    assert asked_budget() == Budget(fraction=0.75) and asked_budget(0.5) == Budget(fraction=0.5)
    assert asked_budget(None, 4096) == Budget(bytes=4096, is_total=True)
    assert str(asked_budget(None, 4096)) == "4.0 KiB with what is there before a step"


# ---- ORTMODULE_MEMORY_OPT_LEVEL=auto


def test_level_auto_is_the_knee(default, monkeypatch):
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "auto")
    wrapped, loss, gradients = train()
    agent = wrapped._last_agent()
    frontier = json.loads(agent.session.frontier(agent.symbol_values()))
    knee = frontier["rungs"][frontier["knee"]]
    assert wrapped.memory_report()["planned_peak_bytes"] == knee["peak_bytes"] < default[0]
    assert torch.equal(loss, default[1]) and same_bits(gradients, default[2])
    assert train(memory_budget=1.0)[0].memory_report()["planned_peak_bytes"] == default[0], "a budget wins"
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", "BiasGelu+:1:-1")
    assert memory_options().notice == (
        "ORTMODULE_MEMORY_OPT_LEVEL=auto chooses the plan; ORTMODULE_MEMORY_OPT_CONFIG is ignored"
    )
