"""Training loops as users write them, on two processes: losses and final parameters are eager's."""

import pytest
from ranks import run_ranks

CASES = [
    ("join_and_accumulation", "evaluation_on_one_rank", "two_networks", "lora_divided"),
    ("best_of_rank_0_is_loaded", "average_of_weights", "two_calls_before_backward", "loss_of_gathered_outputs"),
    ("checkpointed_layers", "divided_optimizer", "optimizers_of_parts", "parameters_frozen_on_the_way"),
    ("whole_object_saved", "lora", "divided_and_checkpointed", "divided_evaluation"),
    ("divided_two_calls", "divided_and_frozen", "teacher_and_pupil", "layers_that_ranks_choose"),
    ("group_of_one_rank", "divided_two_networks", "divided_but_for_some"),
]


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(cases, id="-".join(cases), marks=pytest.mark.long if index else ())
        for index, cases in enumerate(CASES)
    ],
)
def test_training_is_eagers(cases):
    assert run_ranks("loop_cases.py", *cases).count(": right on rank") == 2 * len(cases)
