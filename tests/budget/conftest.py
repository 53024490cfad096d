import sys
from pathlib import Path

import pytest

sys.path[:0] = map(str, Path(__file__).resolve().parents[:2])  # activations, zoo
import zoo  # noqa: E402
from activations import build  # noqa: E402

from lowtide.ortmodule import ORTModule  # noqa: E402


class Trained:
    """A wrapper after one step."""

    def __init__(self, name, sizes=None, **options):
        model, make_batch = zoo.build(name)
        self.wrapped = ORTModule(model, **options)
        self.batch = make_batch(**(sizes or {}))
        self.again()
        assert self.wrapped.fallback_reason is None
        agent = self.wrapped._last_agent()
        self.session, self.values = agent.session, agent.symbol_values()

    def again(self):
        self.wrapped(**self.batch).loss.backward()

    def picture(self):
        return self.session.arena_picture(self.values)


@pytest.fixture(scope="session")
def gpt2():
    return Trained("gpt2")


@pytest.fixture(scope="session")
def gpt2_recomputed():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
        return Trained("gpt2")


@pytest.fixture
def blocks():
    return build()
