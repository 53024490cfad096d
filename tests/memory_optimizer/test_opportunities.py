"""What could be saved, as programs read it: ORTModule's call, JSON, and ORTModule.memory_opportunities."""

import json
import logging

import pytest
import zoo
from trainee import Trainee

from lowtide.capture import Call
from lowtide.errors import InvalidArgument
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule


@pytest.fixture(scope="module")
def gpt2():
    return Trainee("gpt2", layers=3)


def test_the_call_of_ortmodule(gpt2):
    agent = gpt2.agent()
    table, opportunities = agent.get_serialized_ortmodule_memory_stat("", "", True)
    assert "MemoryInsight Summary - User config: not provided" in table
    assert list(opportunities) == sorted(opportunities)
    saving, frequency = opportunities["FastGelu+:1:-1"]
    # f32[batch * length, 4 * 64] three times; "input_ids" is the first input that carries the dims.
    assert frequency == 3
    assert saving == f"{3 * 256 * 4}.0*input_ids_dim0*input_ids_dim1"
    assert agent.get_serialized_ortmodule_memory_stat()[0] == ""


def test_another_configuration_than_the_one_in_force(gpt2):
    agent = gpt2.agent()
    table, _ = agent.get_serialized_ortmodule_memory_stat("FastGelu+:1:2", "", True)
    assert "User config: FastGelu+:1:2" in table
    assert "Enabled, requested count=2, actual applied count=2" in table
    assert agent.session.training_text() == gpt2.agent().session.training_text()


def test_json(gpt2):
    told = json.loads(gpt2.agent().memory_stat_json("FastGelu+:1:-1"))
    assert told["requests"] == [{"config": "FastGelu+:1:-1", "found": 3, "applied": 3}]
    assert told["stashed"] > 3 * 2 * 16 * 256 * 4 and told["peak_with"] > 0 < told["peak_without"]
    gelus = [candidate for candidate in told["candidates"] if candidate["cluster"] == "FastGelu+"]
    assert [candidate["layer"] for candidate in gelus] == [f"transformer.h.{i}" for i in range(3)]
    assert all(candidate["on"] and candidate["outputs"][0]["bytes"] == 2 * 16 * 256 * 4 for candidate in gelus)


@pytest.mark.parametrize(
    ("name", "layers", "batch", "length"), [("gpt2", 3, 3, 40), pytest.param("t5", 2, 3, 40, marks=pytest.mark.long)]
)
def test_peaks_after_are_what_is_planned(name, layers, batch, length):
    """The column is the planned peak of a session that begins at these sizes with the row switched on; it was up to 1 %
    above where it was packed less thoroughly."""
    trainee = Trainee(name, layers)
    sizes = Call((), trainee.make_batch(batch=batch, length=length)).sizes()
    rows = trainee.agent().memory_stat(sizes=sizes)["rows"]
    assert len(rows) > 5
    for row in rows:
        agent = trainee.agent(config=row["combination"])
        assert trainee.planned_peak(agent, batch, length) == row["peak_after"], row["combination"]


def all_plans(agent):
    """Every plain recomputation of the table at once."""
    rows = agent.memory_stat(peaks=False)["rows"]
    return ",".join(row["combination"] for row in rows if ":1:" in row["combination"])


def test_a_configuration_that_raises_the_peak_is_said_to(monkeypatch, caplog):
    """What is made again before backward needs much lies beside the stashes of the layers that are still to come."""
    bloom = Trainee("bloom", 3)
    plain = bloom.agent()
    joined = bloom.agent(config=all_plans(plain))
    before, after = bloom.planned_peak(plain), bloom.planned_peak(joined)
    notice = f"the configuration raises the planned peak from {before:,} to {after:,} bytes"
    assert after > before and joined.memory_stat(peaks=False)["notices"] == [notice]
    assert json.loads(joined.memory_stat_json())["warnings"] == [notice]
    assert plain.memory_stat(peaks=False)["notices"] == []
    assert plain.memory_stat(all_plans(plain), peaks=False)["notices"] == [notice]
    for config, count in ((all_plans(plain), 1), ("Gather+Gather+:1:-1", 0)):
        caplog.clear()
        monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", config)
        wrapped = ORTModule(bloom.model)
        wrapped(**bloom.make_batch()).loss.backward()
        said = [text for text in map(logging.LogRecord.getMessage, caplog.records) if "raises" in text]
        reached = f" to {wrapped.memory_report()['planned_peak_bytes']:,} bytes"
        assert len(said) == count and all(text.endswith(reached) for text in said)


def test_a_raised_peak_is_told_of_a_plan_that_was_read(monkeypatch, caplog, tmp_path):
    """At INFO, where the table compares anyway; at WARNING a warm start plans nothing."""
    bloom = Trainee("bloom", 3)
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", all_plans(bloom.agent()))
    for _ in range(2):
        caplog.clear()
        ORTModule(bloom.model, DebugOptions(LogLevel.INFO))(**bloom.make_batch()).loss.backward()
        texts = [record.getMessage() for record in caplog.records]
        assert len([text for text in texts if "raises the planned peak" in text]) == 1
    assert any("is read from" in text for text in texts)


def test_of_a_module():
    model, make_batch = zoo.build("gpt2")
    wrapped = ORTModule(model)
    with pytest.raises(InvalidArgument, match="no call has run"):
        wrapped.memory_opportunities()
    wrapped(**make_batch(batch=2, length=16))
    small = {row["combination"]: row for row in wrapped.memory_opportunities()}
    wrapped(**make_batch(batch=4, length=16))
    large = {row["combination"]: row for row in wrapped.memory_opportunities()}
    assert large["FastGelu+:1:-1"]["saving_bytes"] == 2 * small["FastGelu+:1:-1"]["saving_bytes"] > 0
    assert small["FastGelu+:1:-1"]["peak_after"] > 0 and not small["FastGelu+:1:-1"]["on"]
    savings = [row["saving_bytes"] for row in wrapped.memory_opportunities()]
    assert savings == sorted(savings, reverse=True)
    summary = wrapped.memory_summary()
    assert "MemoryInsight Summary" in summary and "########Recompute########" in summary
