"""What each wrapper trains on four processes, in one start of them: else their start takes longer than a case."""

import pytest

MODELS = ("gpt2", "bert", "resnet", "t5")
CASES = ("plain", "accumulation", "clipping", "autocast", "level_1", "budget")

each_model = pytest.mark.parametrize("model", MODELS)
