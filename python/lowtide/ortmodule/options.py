"""What users set: DebugOptions and the environment variables, all read here."""

import enum
import logging
import os

from lowtide.errors import InvalidArgument, UnsupportedError


class LogLevel(enum.IntEnum):
    VERBOSE = 0
    DEVINFO = 1
    INFO = 2
    WARNING = 3
    ERROR = 4
    FATAL = 5


_PYTHON_LEVELS = {
    LogLevel.VERBOSE: logging.DEBUG,
    LogLevel.DEVINFO: logging.INFO,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
    LogLevel.FATAL: logging.CRITICAL,
}


class DebugOptions:
    """`log_level` of the "lowtide" logger; ORTMODULE_LOG_LEVEL overrides it."""

    def __init__(self, log_level=LogLevel.WARNING, save_onnx=False, onnx_prefix="", save_path="", config=None):
        if not isinstance(log_level, LogLevel):
            raise TypeError(f"Expected log_level of type LogLevel, got {type(log_level).__name__}")
        if save_onnx:
            raise UnsupportedError("save_onnx is not available yet")
        self.log_level = _environment_level() or log_level
        self.config = config

    @property
    def python_level(self):
        return _PYTHON_LEVELS[self.log_level]


def _environment_level():
    name = os.environ.get("ORTMODULE_LOG_LEVEL", "")
    if not name:
        return None
    if name not in LogLevel.__members__:
        raise InvalidArgument(f"ORTMODULE_LOG_LEVEL is '{name}', expected one of {', '.join(LogLevel.__members__)}")
    return LogLevel[name]


def fallback_disabled():
    """ORTMODULE_FALLBACK_POLICY=FALLBACK_DISABLE: what the engine cannot run is an error."""
    return os.environ.get("ORTMODULE_FALLBACK_POLICY", "") == "FALLBACK_DISABLE"


def session_options():
    """For looking for faults: LOWTIDE_GUARD=1 checks every byte of the arena after each half of a step;
    LOWTIDE_DISABLE_PASSES and LOWTIDE_DISABLE_KERNELS are comma-separated names (kernels: or providers)."""
    return {
        "guard": os.environ.get("LOWTIDE_GUARD", "") == "1",
        "disabled_passes": _names("LOWTIDE_DISABLE_PASSES"),
        "disabled_kernels": _names("LOWTIDE_DISABLE_KERNELS"),
    }


def _names(variable):
    return [name for name in os.environ.get(variable, "").split(",") if name]
