"""Bugs of lowtide's own (InternalError): each is an ERROR in the log, with a folder that shows it again.

    report.json     what failed: the session's options, sizes, versions, environment variables
    graph.txt       the captured graph, where there is one
    traceback.txt

No weights and no data are in it. `lowtide reproduce FOLDER` (cli/reproduce.py) runs again what failed.
"""

import bdb
import json
import platform
import re
import tempfile
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

import lowtide
from lowtide import environment
from lowtide.capture import user_line
from lowtide.errors import Error, InternalError, InvalidArgument, UnsupportedError
from lowtide.log import logger

FORMAT = 1
_FOLDER = "lowtide-bug-"
_LIBRARIES = ("/sympy/", "/numpy/")  # whose code runs in ours without a user's doing


@dataclass(frozen=True)
class Evidence:
    """What failed, for another process."""

    stage: str = "export"  # or plan, forward, backward
    graph: str = ""
    session: dict = field(default_factory=dict)  # keywords of Session
    sizes: dict = field(default_factory=dict)  # of a step: symbol of the graph → size
    functions: tuple = ()  # names of custom Functions in the graph: code that is not in the folder

    @classmethod
    def of(cls, stage, captured, session, sizes=()):
        """`sizes`: of the call's tensors."""
        dims = captured.imported.sizes.dims if sizes else {}
        values = {name: sizes[index][position] for name, (index, position) in dims.items()}
        functions = tuple(call.name for call in captured.functions)
        return cls(stage, captured.graph.text(), session, values, functions)

    @property
    def needs_model(self):
        """Whether the user's own code is needed to show the bug again."""
        return self.stage == "export" or (self.stage != "plan" and bool(self.functions))


class bugs_are_internal_errors:
    """Around what a call makes: whatever comes up there, unforeseen, is a bug of ours. But what a user's object raises
    while it is looked at is a refusal, and what forward raises while it is traced is one already."""

    __slots__ = ()

    def __enter__(self):
        pass

    def __exit__(self, kind, error, frames):
        known = UnsupportedError | InvalidArgument | InternalError | MemoryError | bdb.BdbQuit
        if not isinstance(error, Exception) or isinstance(error, known):
            return
        if isinstance(error, Error):
            text = str(error)
        else:
            text = f"{type(error).__name__}: {error}"
            called = [each for each in traceback.extract_tb(frames) if not any(i in each.filename for i in _LIBRARIES)]
            if line := user_line(called):
                raise UnsupportedError(f"{text} ({line})") from error
        bug = InternalError(text)
        bug.evidence = getattr(error, "evidence", None)
        raise bug from error


class BugReports:
    """Of the calls of one module: one report for each bug."""

    def __init__(self, module_name):
        self._name, self._told = module_name, set()

    def tell(self, error):
        key = re.sub(r"\d+", "#", str(error))
        if key in self._told:
            return
        self._told.add(key)
        evidence = getattr(error, "evidence", None) or Evidence()
        try:
            folder = self._write(error, evidence)
        except OSError as problem:
            logger.error("a bug in lowtide: %s: %s (no report of it: %s)", self._name, error, problem)
            return
        command = f"lowtide reproduce {folder}"
        if evidence.needs_model:
            command += " MODULE:FUNCTION, where the function returns (model, args),"
        logger.error(
            "a bug in lowtide: %s: %s\nPlease report it with the folder %s (graph, versions and traceback; no weights, "
            "no data): %s shows it again",
            self._name,
            error,
            folder,
            command,
        )

    def _write(self, error, evidence):
        folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
        told = {"format": FORMAT, "error": str(error), "module": self._name, **asdict(evidence)}
        told.update(versions=versions(), environment=environment.set_here())
        (folder / "graph.txt").write_text(told.pop("graph"))
        (folder / "report.json").write_text(json.dumps(told, indent=1))
        (folder / "traceback.txt").write_text("".join(traceback.format_exception(error)))
        return folder


def versions():
    return {
        "lowtide": lowtide.__version__,
        "PyTorch": str(torch.__version__),
        "Python": platform.python_version(),
        "system": platform.platform(),
        "CPU": torch.backends.cpu.get_cpu_capability(),
    }
