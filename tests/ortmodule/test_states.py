"""State of the process that forward asks for: each call's own answers count, not those of the trace."""

import contextlib
import copy
import json
import os

import pytest
import torch
from cached import graphs, run
from modules import Of, x

from lowtide.ortmodule import ORTModule
from lowtide.store import files

pytestmark = pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")


FLAGS = contextlib.ExitStack()  # PyTorch's own testing tools forbid that they are set in any other way


@pytest.fixture(autouse=True)
def as_before():
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(False)
    FLAGS.close()
    torch.autograd.set_detect_anomaly(False)
    os.environ.pop("LOWTIDE_TEST_FLAG", None)


def asks_from_afar():
    return os.environ["LOWTIDE_TEST_FLAG"] == "1"


def set_variable(yes):
    os.environ["LOWTIDE_TEST_FLAG"] = "1" if yes else "0"


def keep_variable(yes):
    if yes:
        os.environ["LOWTIDE_TEST_FLAG"] = ""
    else:
        os.environ.pop("LOWTIDE_TEST_FLAG", None)


# name → (what sets it, what forward asks)
STATES = {
    "anomaly": (torch.autograd.set_detect_anomaly, torch.is_anomaly_enabled),
    "threads": (lambda yes: torch.set_num_threads(1 + yes), lambda: torch.get_num_threads() > 1),
    "precision": (
        lambda yes: torch.set_float32_matmul_precision("medium" if yes else "highest"),
        lambda: torch.get_float32_matmul_precision() == "medium",
    ),
    "warn_only": (
        lambda yes: torch.use_deterministic_algorithms(True, warn_only=yes),
        lambda: torch.is_deterministic_algorithms_warn_only_enabled(),
    ),
    "flag": (
        lambda yes: FLAGS.enter_context(torch.backends.cudnn.flags(deterministic=yes)),
        lambda: torch.backends.cudnn.deterministic,
    ),
    "variable": (set_variable, lambda: os.environ.get("LOWTIDE_TEST_FLAG") == "1"),
    "variable of a function": (set_variable, asks_from_afar),
    "getenv": (set_variable, lambda: os.getenv("LOWTIDE_TEST_FLAG") == "1"),
    "is there": (keep_variable, lambda: "LOWTIDE_TEST_FLAG" in os.environ),
}


@pytest.mark.parametrize("name", STATES)
def test_what_forward_asks_is_answered_by_the_call(name):
    set_state, asks = STATES[name]
    model = Of(lambda m, a: m.l(a) * (2.0 if asks() else 3.0))
    engine = ORTModule(copy.deepcopy(model))
    for yes in (False, True, False, False, True):
        set_state(yes)
        argument = x()
        torch.testing.assert_close(engine(argument), model(argument))
    assert engine.fallback_reason is None
    assert engine.transition_counts() == {"in training mode": {"first call": 1, "global": 1}}  # a graph for each answer


class Asking(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(4, 4)

    def forward(self, a):
        flag = os.environ.get("LOWTIDE_TEST_FLAG") == "1" or torch.get_num_threads() == 1
        return self.l(a) * (2.0 if flag else 3.0 + torch.backends.cudnn.deterministic)


def test_a_stored_graph_is_for_one_answer(folder, exports, caplog):
    set_variable(False)
    for _ in range(2):
        engine = run(module := Asking(), x())
    assert len(exports) == 1
    set_variable(True)
    torch.testing.assert_close(engine(x()), module(x()))
    assert "environment variable `LOWTIDE_TEST_FLAG` was '0', is now '1'" in caplog.text
    run(Asking(), x())
    assert len(exports) == 2
    set_variable(False)
    torch.set_num_threads(1)
    run(Asking(), x())
    assert len(exports) == 3


def test_a_file_cannot_have_other_functions_called(folder, exports, caplog):
    run(Asking(), x())
    (path,) = graphs(folder)
    told = json.loads(files.read(path, "captured graph 1"))
    (asked,) = (place for place in told["guards"]["reads"] if place[2] == "get_num_threads")
    asked[2] = "seed"
    files.write(path, "captured graph 1", json.dumps(told).encode())
    torch.manual_seed(3)
    run(Asking(), x())
    assert torch.initial_seed() == 3 and len(exports) == 2
    assert f"{path} is ignored" in caplog.text
