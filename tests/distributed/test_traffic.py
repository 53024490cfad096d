"""What ./dev bench distributed calls hidden: of messages whose times are known."""

import pytest
from ranks import run_ranks


@pytest.mark.long
def test_what_is_hidden_is_what_was_not_waited_for():
    assert run_ranks("traffic_cases.py").count("right on rank") == 2
