import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


@pytest.fixture(autouse=True)
def nothing_asked_for(monkeypatch):
    """What the environment of the tests asks the memory optimizer for is not theirs."""
    for name in [name for name in os.environ if name.startswith("ORTMODULE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    torch.manual_seed(0)
