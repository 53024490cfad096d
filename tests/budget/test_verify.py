"""verify=True: a plan that gives the same bits passes once, one that does not is named with the first tensor."""

import pytest
import torch
import zoo

from lowtide._lowtide import injects_faults
from lowtide.errors import InternalError
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule


def wrap(name, **options):
    model, make_batch = zoo.build(name)
    return model, make_batch, ORTModule(model, DebugOptions(LogLevel.ERROR), verify=True, **options)


def checks(wrapped):
    return wrapped._last_agent()._check


@pytest.mark.parametrize("name", ["gpt2", "bert", "resnet"])
def test_recompute_gives_the_same_bits(name, monkeypatch):
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "2")
    model, make_batch, wrapped = wrap(name)
    model.train()
    batch = make_batch()
    buffers = [buffer.clone() for buffer in model.buffers()]
    wrapped(**batch).loss.backward()
    assert len(checks(wrapped).checked) == 1 and wrapped.fallback_reason is None
    twin, _ = zoo.build(name)
    twin.train()
    for buffer, before in zip(twin.buffers(), buffers, strict=True):
        buffer.copy_(before)
    twin(**batch)
    for buffer, expected in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(buffer, expected)  # written once, not by the check too


def test_a_plan_is_checked_once(monkeypatch):
    _, make_batch, wrapped = wrap("gpt2")
    wrapped(**make_batch()).loss.backward()
    monkeypatch.setattr(type(checks(wrapped)), "_run", lambda *_: pytest.fail("run again"))
    wrapped(**make_batch(length=24)).loss.backward()


def test_random_numbers_go_on_as_without(monkeypatch):
    def states(**options):
        model, make_batch = zoo.build("gpt2")
        model.train()
        batch = make_batch()
        torch.manual_seed(5)
        wrapped = ORTModule(model, DebugOptions(LogLevel.ERROR), **options)
        losses = []
        for _ in range(2):
            losses.append(wrapped(**batch).loss)
            losses[-1].backward()
        return torch.stack(losses), torch.get_rng_state()

    for found, expected in zip(states(verify=True), states(), strict=True):
        assert torch.equal(found, expected)


def test_each_plan_that_a_budget_takes_is_checked(blocks):
    model, x = blocks
    wrapped = ORTModule(model, DebugOptions(LogLevel.ERROR), memory_budget=0.5, verify=True)
    wrapped(x).backward()
    (plan,) = checks(wrapped).checked
    assert plan > 0 and wrapped.fallback_reason is None
    again = ORTModule(model, DebugOptions(LogLevel.ERROR), memory_budget=wrapped.memory_report()["planned_peak_bytes"])
    assert again.longest("1GiB", dim="batch", example=(x,)) > len(x)


def test_short_batches_have_the_plan_without_a_budget(blocks):
    model, x = blocks
    default = ORTModule(model, DebugOptions(LogLevel.ERROR))
    default(x).backward()
    budget = int(0.6 * default.memory_report()["planned_peak_bytes"])
    wrapped = ORTModule(model, DebugOptions(LogLevel.ERROR), memory_budget=budget, verify=True)
    for rows in (len(x), len(x) // 4, len(x)):
        wrapped(x[:rows]).backward()
        assert wrapped.memory_report()["planned_peak_bytes"] <= budget
    plans = checks(wrapped).checked
    assert len(plans) == 2 and 0 in plans
    (mode,) = wrapped.transition_counts().values()
    assert mode["first call"] == 1 and sum(mode.values()) == 1, "one export for all"


def test_level_auto_is_checked_against_no_recipe_at_all(blocks, monkeypatch):
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "auto")
    model, x = blocks
    wrapped = ORTModule(model, DebugOptions(LogLevel.ERROR), verify=True)
    wrapped(x).backward()
    assert checks(wrapped).checked != {0}
    assert not {"memory_knee", "memory_budget"} & checks(wrapped)._options.keys()


@pytest.mark.skipif(not injects_faults, reason="this build injects no faults")
def test_a_recipe_that_computes_wrongly_is_named(monkeypatch):
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    _, make_batch, healthy = wrap("gpt2")
    healthy(**make_batch()).loss.backward()
    text = healthy.text("training")
    value = next(
        line.split("%")[1].split(":")[0] for line in text.splitlines() if "fast_gelu" in line and "_recompute:" in line
    )
    monkeypatch.setenv("LOWTIDE_TEST_FAULT", f"{value}:1.001")
    _, make_batch, faulty = wrap("gpt2")
    loss = faulty(**make_batch()).loss
    with pytest.raises(
        InternalError, match=r"verify: the gradient of \S+ is not what the plan without recipes computes"
    ):
        loss.backward()
