"""Whatever is recomputed, losses, gradients and buffers are the same bits, with dropout on, over three steps."""

import pytest
from trainee import Trainee, differences

MODELS_IN_CI = ("gpt2", "resnet")
MODELS = pytest.mark.parametrize(
    "name",
    [*MODELS_IN_CI, *(pytest.param(name, marks=pytest.mark.long) for name in ("bert", "bloom", "llama", "swin", "t5"))],
)


def three_layers(name):
    return Trainee(name, layers=3)


@MODELS
def test_levels(name):
    trainee = three_layers(name)
    plain = trainee.agent()
    expected = trainee.train(plain)
    assert expected["loss of step 0"] != expected["loss of step 1"]
    for level in (1, 2):
        assert differences(trainee.train(trainee.agent(level=level)), expected) == [], f"level {level}"


@MODELS
def test_every_single_plan(name):
    trainee = three_layers(name)
    plain = trainee.agent()
    expected = trainee.train(plain)
    rows = plain.memory_stat(peaks=False)["rows"]
    assert rows
    wrong = {}
    for row in rows:
        agent = trainee.agent(config=row["combination"])
        outcomes = agent.session.memory_outcomes()
        assert outcomes and all(applied == found > 0 for _, _, found, applied in outcomes), outcomes
        if different := differences(trainee.train(agent), expected):
            wrong[row["combination"]] = different
    assert wrong == {}


def test_all_plans_together():
    """Plans that overlap and plans that read each other's values, in any order of the configuration."""
    trainee = three_layers("bloom")
    plain = trainee.agent()
    expected = trainee.train(plain)
    plans = [row["combination"] for row in plain.memory_stat(peaks=False)["rows"] if ":1:" in row["combination"]]
    for config in (",".join(plans), ",".join(reversed(plans))):
        assert differences(trainee.train(trainee.agent(config=config)), expected) == []
