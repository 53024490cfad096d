"""ORTMODULE_MEMORY_OPT_CONFIG, _LEVEL and _PROBE_CONFIG as users set them."""

import json
import logging

import pytest
import transformers as hf
import zoo
from trainee import Trainee
from training_text import StashText

from lowtide.errors import InvalidArgument
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule

FAST_GELU = ("Gelu", "FastGelu", "BiasGelu")


@pytest.fixture(scope="module")
def gpt2():
    return Trainee("gpt2", layers=3)


def deep_gpt2(layers=24):
    config = hf.GPT2Config(
        vocab_size=zoo.VOCAB, n_embd=32, n_layer=layers, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    config.use_cache = False
    return hf.GPT2LMHeadModel(config)


def test_the_first_twelve_of_twenty_four(caplog, monkeypatch):
    """ORTModule's own example."""
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", "FastGelu+:1:12")
    wrapped = ORTModule(deep_gpt2(), DebugOptions(LogLevel.DEVINFO))
    _, make_batch = zoo.build("gpt2")
    with caplog.at_level(logging.INFO, logger="lowtide"):
        wrapped(**make_batch()).loss.backward()
    log = "\n".join(record.getMessage() for record in caplog.records if record.name == "lowtide")
    assert "memory optimizer: FastGelu+:1:12: requested 12, applied 12 of 24" in log
    assert "OptimizationType: Recompute (requested_count=12, actual applied_count=12)" in log
    assert "User config: FastGelu+:1:12" in log and "ProbeLevel: 1, available configs:" in log
    clones = StashText(wrapped.text("training")).recomputed(*FAST_GELU)
    assert [clone.module.rpartition("transformer.h.")[2].partition(".")[0] for clone in reversed(clones)] == [
        str(layer) for layer in range(12)
    ]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("FastGelu+", "FastGelu+"),
        ("FastGelu+:1", "FastGelu+:1"),
        ("FastGelu+:1:12:3", "12:3"),
        ("FastGelu+:7:1", "7"),
        ("FastGelu+:1:-2", "-2"),
        ("FastGelu+:1:many", "many"),
        ("Gemm+:1:-1,:1:1", "character 11"),
    ],
)
def test_bad_configurations_are_errors(gpt2, config, expected):
    with pytest.raises(InvalidArgument) as error:
        gpt2.agent(config=config)
    message = str(error.value)
    assert expected in message and "character" in message
    assert ":1:" in message, "an example of a right one"


def test_users_see_a_bad_configuration_at_the_first_call(monkeypatch):
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", "FastGelu+:9:1")
    monkeypatch.delenv("ORTMODULE_FALLBACK_POLICY")
    model, make_batch = zoo.build("gpt2")
    with pytest.raises(InvalidArgument):
        ORTModule(model)(**make_batch())


@pytest.mark.parametrize(
    "level", ["3", "one", *(pytest.param(level, marks=pytest.mark.long) for level in ("-1", "1.0"))]
)
def test_bad_levels_are_errors(monkeypatch, level):
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
    model, make_batch = zoo.build("gpt2")
    with pytest.raises(InvalidArgument, match=f"ORTMODULE_MEMORY_OPT_LEVEL is '{level}', expected one of 0 "):
        ORTModule(model)(**make_batch())


@pytest.mark.parametrize("probe", ["2", "1:2", "x", "1:1:1"])
def test_bad_probes_are_errors(gpt2, probe):
    with pytest.raises(InvalidArgument):
        gpt2.agent(probe=probe)


def test_an_unknown_cluster_warns_with_the_nearest(gpt2):
    agent = gpt2.agent(config="FastGeluu+:1:-1")
    (notice,) = agent.session.memory_notices()
    assert "FastGeluu+" in notice and "FastGelu+" in notice.replace("FastGeluu+", "")
    assert [(found, applied) for _, _, found, applied in agent.session.memory_outcomes()] == [(0, 0)]
    assert agent.session.training_text() == gpt2.agent().session.training_text()


def test_what_a_larger_op_absorbed_is_said_to_be_absorbed():
    (notice,) = Trainee("bloom").agent(config="Softmax+:1:-1").session.memory_notices()
    assert "not stashed: absorbed by Attention" in notice and "unknown" not in notice.lower()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, -1])
def test_counts(gpt2, count):
    agent = gpt2.agent(config=f"FastGelu+:1:{count}")
    expected = 3 if count == -1 else min(count, 3)
    ((plan, requested, found, applied),) = agent.session.memory_outcomes()
    assert (plan, requested, found, applied) == (f"FastGelu+:1:{count}", count, 3, expected)
    assert len(StashText(agent.session.training_text()).recomputed(*FAST_GELU)) == expected


def test_type_0_leaves_alone(gpt2):
    text = gpt2.agent(config="FastGelu+:0:-1").session.training_text()
    assert text == gpt2.agent().session.training_text()


def test_type_0_takes_a_plan_back(gpt2):
    agent = gpt2.agent(config="Gemm+:1:-1,FastGelu+:1:-1,Gemm+:0:-1,")
    assert agent.session.training_text() == gpt2.agent(config="FastGelu+:1:-1").session.training_text()


@pytest.mark.parametrize("config", ["/gone/plans.json", "BiasGelu+", "Gemm+:1:-1"])
def test_beside_a_level_a_configuration_is_not_even_read(monkeypatch, caplog, config):
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", config)
    model, make_batch = zoo.build("gpt2")
    wrapped = ORTModule(model)
    wrapped(**make_batch()).loss.backward()
    assert wrapped.fallback_reason is None
    notices = [record.getMessage() for record in caplog.records if "ORTMODULE_MEMORY_OPT_CONFIG" in record.getMessage()]
    assert notices == ["ORTMODULE_MEMORY_OPT_LEVEL=1 recomputes whole layers; ORTMODULE_MEMORY_OPT_CONFIG is ignored"]


@pytest.mark.parametrize(
    ("plan", "probe", "reason"),
    [
        (
            "FastGelu+:2:-1",
            "",
            "no plan of type 2 (RecomputeWithCompromise); it can be had as type 1 (Recompute)",
        ),
        ("Gemm+:1:-1", "0:0", "the probe level 0 leaves out Gemm"),
        ("Gather+Gather+Add+Dropout+:1:-1", "1:1", "its output is a layer's input (boundary 1)"),
    ],
)
def test_why_a_plan_is_not_there(gpt2, plan, probe, reason):
    agent = gpt2.agent(config=plan, probe=probe)
    assert agent.session.memory_notices() == [f"ORTMODULE_MEMORY_OPT_CONFIG: {plan}: {reason}"]


def test_a_json_file_is_a_configuration(gpt2, tmp_path):
    path = tmp_path / "plans.json"
    path.write_text(json.dumps(["FastGelu+:1:2", "LayerNormalization+:1:0"]))
    agent = gpt2.agent(config=str(path))
    assert agent.session.training_text() == gpt2.agent(config="FastGelu+:1:2").session.training_text()
    path.write_text('["FastGelu+:1:2",')
    with pytest.raises(InvalidArgument):
        gpt2.agent(config=str(path))


def test_the_order_of_a_configuration_does_not_matter(gpt2):
    rows = [row["combination"] for row in gpt2.agent().memory_stat(peaks=False)["rows"] if ":1:" in row["combination"]]
    texts = {gpt2.agent(config=",".join(order)).session.training_text() for order in (rows, rows[::-1])}
    assert len(rows) > 3 and len(texts) == 1
