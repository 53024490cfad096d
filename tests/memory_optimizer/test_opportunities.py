"""What could be saved, as programs read it: ORTModule's call, JSON, and ORTModule.memory_opportunities."""

import json

import pytest
import zoo
from trainee import Trainee

from lowtide.errors import InvalidArgument
from lowtide.ortmodule import ORTModule


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


def test_peaks_after_are_what_is_planned(gpt2):
    """The column is the planned peak of a session that has the row switched on."""
    plain = gpt2.agent()
    rows = plain.memory_stat()["rows"]
    for row in rows[:4]:
        planned = gpt2.planned_peak(gpt2.agent(config=row["combination"]))
        # The session's own plan is searched longer.
        assert planned <= row["peak_after"] <= planned * 1.02, row["combination"]


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
