"""What each wrapper trains on four processes, in runs that end within the limit of a test."""

import pytest

LEVEL = {"ORTMODULE_MEMORY_OPT_LEVEL": "1"}
MODELS = ("gpt2", "bert", "resnet", "t5")
RUNS = [
    (("plain", "clipping"), {}),
    (("accumulation",), {}),
    (("budget", "autocast"), {}),
    (("plain",), LEVEL),
]


def _name(model, cases, variables):
    return "-".join([model, *cases, *(["level_1"] if variables else [])])


each_model_and_run = pytest.mark.parametrize(
    "model, cases, variables",
    [pytest.param(model, *run, id=_name(model, *run)) for model in MODELS for run in RUNS],
)
