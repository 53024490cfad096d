"""What users set: DebugOptions and the environment variables, all read here."""

import enum
import importlib.util
import logging
import os
from dataclasses import dataclass

import torch

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

MEMORY_LEVELS = {
    "0": "USER_SPECIFIED",
    "1": "TRANSFORMER_LAYERWISE_RECOMPUTE",
    "2": "TRANSFORMER_LAYERWISE_RECOMPUTE_WITH_COMPROMISE",
}


class SaveOnnxOptions:
    """`path`: ORTMODULE_SAVE_ONNX_PATH, else what is given, else the current directory."""

    def __init__(self, save, name_prefix, path):
        self.save, self.name_prefix = save, name_prefix
        self.path = os.environ.get("ORTMODULE_SAVE_ONNX_PATH", "") or path or os.getcwd()
        if not save:
            return
        if not os.path.isdir(self.path) or not os.access(self.path, os.W_OK):
            raise OSError(
                f"Directory {self.path} is not writable. Please set the ORTMODULE_SAVE_ONNX_PATH environment variable "
                "to a writable path."
            )
        if not isinstance(name_prefix, str):
            raise TypeError(f"Expected name prefix of type str, got {type(name_prefix)}.")
        if not name_prefix:
            raise ValueError("onnx_prefix must be provided when save_onnx is set.")
        if importlib.util.find_spec("onnx") is None:
            raise UnsupportedError("save_onnx needs the onnx package: pip install lowtide[onnx]")


class DebugOptions:
    """`log_level` of the "lowtide" logger; ORTMODULE_LOG_LEVEL overrides it. `save_onnx`: see docs/onnx.md."""

    def __init__(self, log_level=LogLevel.WARNING, save_onnx=False, onnx_prefix="", save_path="", config=None):
        if not isinstance(log_level, LogLevel):
            raise TypeError(f"Expected log_level of type LogLevel, got {type(log_level).__name__}")
        self.save_onnx_models = SaveOnnxOptions(save_onnx, onnx_prefix, save_path)
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


@dataclass(frozen=True)
class MemoryOptions:
    """What the memory optimizer is asked for."""

    config: str = ""  # "FastGelu+:1:12,Cast+:2:-1", or the path of a JSON file with a list of such strings
    level: int = 0  # 0: `config`; 1: every plain plan inside each layer; 2: compromised plans too
    probe: str = ""  # "level:boundary"

    @property
    def on(self):
        return self.level > 0 or bool(self.config.strip())

    def for_session(self):
        keywords = {"memory_config": self.config, "memory_level": self.level, "probe_config": self.probe}
        return {name: value for name, value in keywords.items() if value}


def memory_options():
    """ORTMODULE_MEMORY_OPT_CONFIG, ORTMODULE_MEMORY_OPT_LEVEL and ORTMODULE_MEMORY_OPT_PROBE_CONFIG."""
    level = os.environ.get("ORTMODULE_MEMORY_OPT_LEVEL", "").strip()
    if level not in ("", *MEMORY_LEVELS):
        known = ", ".join(f"{number} ({name})" for number, name in MEMORY_LEVELS.items())
        raise InvalidArgument(f"ORTMODULE_MEMORY_OPT_LEVEL is '{level}', expected one of {known}")
    return MemoryOptions(
        os.environ.get("ORTMODULE_MEMORY_OPT_CONFIG", "").strip(),
        int(level or 0),
        os.environ.get("ORTMODULE_MEMORY_OPT_PROBE_CONFIG", "").strip(),
    )


def is_first_rank():
    """Whether this process tells users what all of its kind would tell them."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank() == 0
    return os.environ.get("RANK", "0") == "0"


def _names(variable):
    return [name for name in os.environ.get(variable, "").split(",") if name]
