"""DebugOptions, and environment variables: each is read or named in a notice, and the documentation lists them all."""

import logging
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from modules import Of, x

from lowtide.environment import VARIABLES, notices
from lowtide.errors import FallbackWarning, InvalidArgument
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule

ROOT = Path(__file__).resolve().parents[2]


def test_log_level_of_options_and_environment(monkeypatch):
    monkeypatch.delenv("ORTMODULE_LOG_LEVEL", raising=False)
    assert DebugOptions().log_level is LogLevel.WARNING
    assert DebugOptions(LogLevel.INFO).logging.log_level is LogLevel.INFO
    for level in LogLevel:
        monkeypatch.setenv("ORTMODULE_LOG_LEVEL", level.name)
        assert DebugOptions(LogLevel.ERROR).log_level is level
    assert sorted(LogLevel) == [getattr(LogLevel, name) for name in "VERBOSE DEVINFO INFO WARNING ERROR FATAL".split()]


def test_wrong_levels_say_what_is_expected(monkeypatch):
    with pytest.raises(TypeError, match="Expected log_level of type LogLevel"):
        DebugOptions(log_level=logging.INFO)
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "LOUD")
    with pytest.raises(InvalidArgument, match="ORTMODULE_LOG_LEVEL is 'LOUD', expected one of VERBOSE, DEVINFO"):
        DebugOptions()


def test_a_variable_that_has_no_effect_is_named_with_the_reason():
    said = list(
        notices(
            {
                "ORTMODULE_USE_TRITON": "1",
                "ORTMODULE_SKIPCHECK_POLICY": "SKIP_CHECK_DISABLED",
                "ORTMODULE_FALLBACK_POLCY": "x",
                "ORTMODULE_LOG_LEVEL": "INFO",
                "PATH": "",
            }
        )
    )
    assert said == [
        "ORTMODULE_FALLBACK_POLCY is set and is no variable of lowtide's; did you mean ORTMODULE_FALLBACK_POLICY?",
        "ORTMODULE_USE_TRITON is set and has no effect in lowtide: there are no Triton kernels in this build",
        "ORTMODULE_SKIPCHECK_POLICY is set and has no effect in lowtide: checks are always on, and cheap",
    ]


def test_names_of_skipped_checks_are_checked(monkeypatch):
    for policy in ("SKIP_CHECK_DISABLED", "SKIP_CHECK_DEVICE | SKIP_CHECK_BUILD_GRADIENT|SKIP_CHECK_EXECUTION_AGENT"):
        monkeypatch.setenv("ORTMODULE_SKIPCHECK_POLICY", policy)
        ORTModule(torch.nn.Linear(2, 2))
    monkeypatch.setenv("ORTMODULE_SKIPCHECK_POLICY", "SKIP_CHECK_DEVICE|SKIP_CHEKS")
    with pytest.raises(InvalidArgument, match="has 'SKIP_CHEKS', expected names joined by | of SKIP_CHECK_DISABLED,"):
        ORTModule(torch.nn.Linear(2, 2))


def test_filters_of_ortmodules_logs_have_nothing_to_filter():
    assert DebugOptions().torch_exporter_filter is None and DebugOptions().onnxruntime_log_filter is None


def test_notices_come_once(caplog, monkeypatch):
    monkeypatch.setenv("ORTMODULE_CONV_ALGO_SEARCH", "EXHAUSTIVE")
    for _ in range(3):
        ORTModule(torch.nn.Linear(2, 2))
    said = [record.getMessage() for record in caplog.records if "ORTMODULE_CONV_ALGO_SEARCH" in record.getMessage()]
    assert len(said) == 1 and "CUDA" in said[0]


def test_the_documentation_lists_every_variable():
    page = (ROOT / "docs" / "environment-variables.md").read_text()
    rows = re.findall(r"^\| `((?:ORTMODULE|LOWTIDE)_\w+)` \|(.*)\|$", page, re.MULTILINE)
    assert [name for name, _ in rows] == list(VARIABLES)
    for name, rest in rows:
        *default, meaning = (cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", rest))
        variable = VARIABLES[name]
        assert meaning == variable.meaning and default == ([variable.default or "–"] if variable.read else [])


def test_the_environment_is_read_in_one_place():
    package = ROOT / "python" / "lowtide"
    readers = [
        path.relative_to(package).as_posix() for path in package.rglob("*.py") if "os.environ" in path.read_text()
    ]
    # log.py: RANK and WORLD_SIZE of torchrun; guards/reads.py: what forward reads
    assert set(readers) <= {"environment.py", "log.py", "guards/reads.py"}
    native = [path.name for path in (ROOT / "src").rglob("*.cpp") if "getenv(" in path.read_text()]
    assert native == ["isa.cpp"]  # for C++ programs too


def test_random_states_are_the_users():
    def states():
        return [repr(random.getstate()), repr(numpy.random.get_state()), torch.get_rng_state().tolist()]

    module = Of(lambda m, a: m.l(a))
    before = states()
    wrapped = ORTModule(module)
    wrapped(x()).sum().backward()
    assert wrapped.fallback_reason is None and states() == before


def test_a_variable_that_is_said_to_be_read_is_read():
    code = "".join(path.read_text() for path in (ROOT / "python" / "lowtide").rglob("*.py"))
    for name, variable in VARIABLES.items():
        assert (code.count(f'"{name}"') > 1) == variable.read, name  # once in the list itself


def test_custom_functions_can_be_switched_off(monkeypatch):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            return a * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    monkeypatch.setenv("ORTMODULE_ENABLE_CUSTOM_AUTOGRAD", "0")
    wrapped = ORTModule(Of(lambda m, a: Double.apply(m.l(a))))
    with pytest.warns(FallbackWarning, match="Double.*ORTMODULE_ENABLE_CUSTOM_AUTOGRAD"):
        wrapped(x()).sum().backward()
    plain = ORTModule(Of(lambda m, a: m.l(a)))
    plain(x())
    assert plain.fallback_reason is None


# ---- LOWTIDE_ISA is read once a process

SETS = ("portable", "avx2", "avx512", "avx512_bf16", "amx")
STEP = """
import torch
from lowtide._lowtide import instruction_set
from lowtide.ortmodule import ORTModule
torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.GELU(), torch.nn.LayerNorm(30))
wrapped, a = ORTModule(module), torch.randn(7, 20)
for m in (module, wrapped):
    module.zero_grad()
    m(a).square().sum().backward()
    grads = [p.grad for p in module.parameters()]
    if m is module:
        expected = grads
torch.testing.assert_close(grads, expected, rtol=1e-4, atol=1e-4)
assert wrapped.fallback_reason is None
print("runs on", instruction_set())
"""


def run_with(level):
    """None: as the processor allows."""
    environment = {name: value for name, value in os.environ.items() if name != "LOWTIDE_ISA"}
    if level is not None:
        environment["LOWTIDE_ISA"] = level
    return subprocess.run([sys.executable, "-c", STEP], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("level", [SETS[0], *(pytest.param(level, marks=pytest.mark.long) for level in SETS[1:])])
def test_the_instruction_set_can_be_limited(level):
    best = run_with(None).stdout.split()[-1]
    done, taken = run_with(level), min(level, best, key=SETS.index)
    assert done.returncode == 0 and f"runs on {taken}" in done.stdout, done.stderr
    notice = f"LOWTIDE_ISA is {level}, this CPU has {taken}: {taken} is taken"
    assert (notice in done.stderr) == (level != taken)


def test_an_unknown_instruction_set_says_which_there_are():
    done = run_with("sse")
    assert done.returncode and "LOWTIDE_ISA is sse; expected portable, avx2, avx512, avx512_bf16 or amx" in done.stderr
