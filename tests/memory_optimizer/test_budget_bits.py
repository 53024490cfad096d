"""A budget changes no bit of losses, gradients and buffers, and is kept: architectures with dropout on, three steps."""

import json

import pytest
import zoo
from trainee import Trainee, differences

MODELS_IN_CI = ("gpt2", "llama", "resnet")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in MODELS_IN_CI else pytest.mark.long) for name in zoo.NAMES]
)
def test_budgets(name):
    trainee = Trainee(name)
    plain = trainee.agent()
    expected = trainee.train(plain)
    values = plain.symbol_values()
    rungs = json.loads(plain.session.frontier(values))["rungs"]
    assert len(rungs) > 1
    for rung in {len(rungs) // 3, 2 * len(rungs) // 3, len(rungs) - 1}:
        budget = rungs[rung]["peak_bytes"]
        agent = trainee.agent(budget=budget)
        assert agent.session.memory(values)["planned_peak_bytes"] <= budget
        assert differences(trainee.train(agent), expected) == [], f"rung {rung}"
