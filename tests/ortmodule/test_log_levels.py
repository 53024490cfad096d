"""What each log level shows, and that nothing stands between C++ or a debugger and the terminal."""

import logging
import os
import pty
import select
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from modules import Of, x

from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule

ROOT = Path(__file__).resolve().parents[2]
NOISE = logging.getLogger("torch.export.noise")

# which levels show it
SHOWN = {
    "is accelerating your model": "VERBOSE DEVINFO INFO WARNING",
    "the graph of Of from torch.export:": "VERBOSE DEVINFO INFO",
    "Note 1: use comma": "VERBOSE DEVINFO INFO",
    "MemoryInsight Summary": "VERBOSE DEVINFO",
    "noise of the exporter": "VERBOSE DEVINFO",
    "a session for training: ": "VERBOSE DEVINFO",
    "program graph:": "VERBOSE",
    "kernels:": "VERBOSE",
    "said in forward": "VERBOSE DEVINFO INFO WARNING ERROR FATAL",
}


def noisy(m, a):
    NOISE.error("noise of the exporter")
    warnings.warn("said in forward", stacklevel=2)
    return m.l(a)


def heard(caplog, level):
    """The text of one first step."""
    caplog.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ORTModule(Of(noisy), DebugOptions(level))(x()).sum().backward()
    return caplog.messages + [str(warning.message) for warning in caught]


@pytest.mark.parametrize("level", LogLevel, ids=lambda level: level.name)
def test_what_a_level_shows(caplog, level):
    messages = heard(caplog, level)
    for text, levels in SHOWN.items():
        assert any(text in message for message in messages) == (level.name in levels.split()), text


def test_a_level_that_the_user_gave_the_logger_holds_outside_of_calls(capsys):
    ours, engine = logging.getLogger("lowtide"), logging.getLogger("lowtide.engine")
    before = ours.level

    def passes():
        return [
            each.isEnabledFor(level) and bool(each.filter(each.makeRecord(each.name, level, "", 0, "", (), None)))
            for each in (ours, engine)
            for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
        ]

    try:
        ORTModule(Of(noisy), DebugOptions(LogLevel.VERBOSE))  # whose calls need a level of ours
        assert passes() == [False, False, True, True] * 2
        ours.setLevel(logging.INFO)
        assert passes() == [False, True, True, True] * 2
        ours.setLevel(logging.ERROR)
        assert passes() == [False, False, False, True] * 2
        ORTModule(Of(noisy), DebugOptions(LogLevel.DEVINFO))
        assert passes() == [False, False, False, True] * 2
    finally:
        ours.setLevel(before)


def test_other_ranks_speak_from_devinfo_on(caplog, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not [text for text in heard(caplog, LogLevel.INFO) if "graph" in text or "accelerating" in text]
    assert any("accelerating" in text for text in heard(caplog, LogLevel.DEVINFO))
    assert {record.name for record in caplog.records} >= {"lowtide.rank-1", "lowtide.engine.rank-1"}


def test_each_module_has_its_own_level(caplog):
    loud, quiet = ORTModule(Of(noisy), DebugOptions(LogLevel.INFO)), ORTModule(Of(noisy), DebugOptions(LogLevel.FATAL))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quiet(x())
        assert not [record for record in caplog.records if record.name.startswith("lowtide")]
        loud(x())
    assert any("torch.export:" in message for message in caplog.messages)


# ---- crashes

CRASHES = """
import ctypes, os, sys, torch
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule

terminate = ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev  # C++'s own last words on the standard error

class Crash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        if not torch.compiler.is_exporting():
            print("said before", file=sys.stderr)
            terminate()
        return a * 2
    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

class Model(torch.nn.Module):
    def __init__(self, exporting):
        super().__init__()
        self.l = torch.nn.Linear(4, 4)
        self.exporting = exporting
    def forward(self, a):
        if self.exporting:
            print("said before", file=sys.stderr)
            terminate()
        return Crash.apply(self.l(a))

torch.export.export(torch.nn.Linear(4, 4), (torch.ones(2, 4),))  # imports what the children need
for level in LogLevel:
    exporting = level in (LogLevel.WARNING, LogLevel.INFO, LogLevel.VERBOSE)
    child = os.fork()
    if child == 0:
        ORTModule(Model(exporting), DebugOptions(level))(torch.ones(2, 4))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print("ENDED", level.name, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, file=sys.stderr, flush=True)
"""


def test_no_stream_is_redirected():
    """A crash, a debugger, a print of the user's: each has the stream that it expects."""
    package = ROOT / "python" / "lowtide"
    for path in [*(package / "capture").rglob("*.py"), *(package / "ortmodule").rglob("*.py")]:
        for word in ("redirect_stdout", "redirect_stderr", "dup2(", "sys.stdout =", "sys.stderr ="):
            assert word not in path.read_text(), path


def environment():
    return {name: value for name, value in os.environ.items() if not name.startswith("ORTMODULE_")}


def test_the_last_words_of_a_crash_reach_the_terminal():
    done = subprocess.run(
        [sys.executable, "-c", CRASHES], env=environment(), capture_output=True, text=True, timeout=120, check=True
    )
    parts = done.stderr.split("ENDED ")
    assert len(parts) == 1 + len(LogLevel), done.stderr[-3000:]
    for level, words, end in zip(LogLevel, parts, parts[1:], strict=False):
        assert end.split()[:2] == [level.name, "6"], end
        assert "terminate called" in words and "said before" in words, (level, words)


# ---- debuggers

DEBUGGED = """
import pdb, torch
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(4, 4)
    def forward(self, x):
        pdb.set_trace()
        return self.l(x)

for level in LogLevel:
    wrapped = ORTModule(Model(), DebugOptions(level))
    print("BEGIN", level.name)
    for step in range(3):
        wrapped(torch.ones(2, 4)).sum().backward()
    print("END", wrapped.fallback_reason, wrapped.l.weight.grad.sum().item())

class Branching(Model):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x

wrapped = ORTModule(Branching(), DebugOptions(LogLevel.ERROR))
print("BEGIN PyTorch")
for step in range(3):
    wrapped(torch.ones(2, 4))
print("END", wrapped.fallback_reason is not None)

wrapped = ORTModule(Model())
print("BEGIN quit")
try:
    wrapped(torch.ones(2, 4))
except BaseException as error:
    print("END", type(error).__name__)
"""


def talk(program, answers):
    """Runs a program on a terminal of its own and types an answer at each prompt: answers(text so far) → line."""
    terminal, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**environment(), "TERM": "dumb"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    text, answered = "", 0
    try:
        while select.select([terminal], [], [], 90)[0]:
            try:
                data = os.read(terminal, 65536)
            except OSError:  # the program has closed its side
                break
            if not data:
                break
            text += data.decode(errors="replace")
            if text[answered:].endswith("(Pdb) "):
                answered = len(text)
                os.write(terminal, answers(text).encode() + b"\n")
    finally:
        os.close(terminal)
        child.kill()
        child.wait()
    return text.replace("\r\n", "\n")


def test_a_debugger_in_forward_works_at_every_level():
    def answers(text):
        if "BEGIN quit" in text:
            return "q"
        value = "p x.sum()" if "BEGIN PyTorch" in text else "p x.shape"
        return value if text.count("(Pdb) ") % 2 else "c"

    text = talk(DEBUGGED, answers)
    parts = text.split("BEGIN ")[1:]
    assert [part.split()[0] for part in parts] == [*(level.name for level in LogLevel), "PyTorch", "quit"], text[-3000:]
    for part in parts[:-2]:
        # Once while the graph is captured: the engine runs the graph, not the code.
        assert part.count("(Pdb) p x.shape") == 1 and "torch.Size([" in part, part
        assert "END None 96.0" in part, part
    # PyTorch runs the code at every step.
    assert parts[-2].count("tensor(8.)") == 3 and "END True" in parts[-2]
    assert "END BdbQuit" in parts[-1]
