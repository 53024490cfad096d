"""What users set: DebugOptions, and what environment variables ask for."""

import enum
import importlib.util
import os
from dataclasses import dataclass

from lowtide import environment
from lowtide.errors import InvalidArgument, UnsupportedError
from lowtide.log import LogLevel, python_level

from .budget import Budget

MEMORY_LEVELS = {
    "0": "USER_SPECIFIED",
    "1": "TRANSFORMER_LAYERWISE_RECOMPUTE",
    "2": "TRANSFORMER_LAYERWISE_RECOMPUTE_WITH_COMPROMISE",
    "auto": "KNEE_OF_ALL_PLANS",
}


class SaveOnnxOptions:
    """`path`: ORTMODULE_SAVE_ONNX_PATH, else what is given, else the current directory."""

    def __init__(self, save, name_prefix, path):
        self.save, self.name_prefix = save, name_prefix
        self.path = environment.read("ORTMODULE_SAVE_ONNX_PATH") or path or os.getcwd()
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
    """`log_level` of one wrapped module (lowtide.log has the table); ORTMODULE_LOG_LEVEL overrides it. `save_onnx`: see
    docs/onnx.md."""

    def __init__(self, log_level=LogLevel.WARNING, save_onnx=False, onnx_prefix="", save_path="", config=None):
        if not isinstance(log_level, LogLevel):
            raise TypeError(f"Expected log_level of type LogLevel, got {type(log_level).__name__}")
        self.save_onnx_models = SaveOnnxOptions(save_onnx, onnx_prefix, save_path)
        level = _environment_level()
        self.log_level = log_level if level is None else level
        self.config = config

    @property
    def python_level(self):
        return python_level(self.log_level)

    @property
    def logging(self):
        """ORTModule's name: `debug_options.logging.log_level`."""
        return _Logging(self.log_level)

    @property
    def torch_exporter_filter(self):
        """ORTModule's: fragments of the exporter's output to drop. None: no output is redirected, so there is none
        to filter; PyTorch's loggers are quiet during an export at levels from INFO up."""
        return None

    @property
    def onnxruntime_log_filter(self):
        """ORTModule's, for its backend's output. None: the engine's records come through Python's logging."""
        return None


@dataclass(frozen=True)
class _Logging:
    log_level: LogLevel


def _environment_level():
    name = environment.read("ORTMODULE_LOG_LEVEL").upper()
    if not name:
        return None
    if name not in LogLevel.__members__:
        raise InvalidArgument(f"ORTMODULE_LOG_LEVEL is '{name}', expected one of {', '.join(LogLevel.__members__)}")
    return LogLevel[name]


class SkipCheck(enum.IntFlag):
    """ORTModule's names of checks that it could leave out. Here none is ever left out: they are cheap."""

    SKIP_CHECK_DISABLED = 1
    SKIP_CHECK_DEVICE = 2
    SKIP_CHECK_BUILD_GRADIENT = 4
    SKIP_CHECK_EXECUTION_AGENT = 8


def skip_checks():
    """ORTMODULE_SKIPCHECK_POLICY: SkipCheck of what is asked for."""
    return parse_skip_checks(environment.read("ORTMODULE_SKIPCHECK_POLICY"))


def parse_skip_checks(text):
    policy = SkipCheck(0)
    for name in filter(None, (part.strip() for part in text.split("|"))):
        if name not in SkipCheck.__members__:
            known = ", ".join(SkipCheck.__members__)
            raise InvalidArgument(f"ORTMODULE_SKIPCHECK_POLICY has '{name}', expected names joined by | of {known}")
        policy |= SkipCheck[name]
    return policy


def session_options():
    """For looking for faults: LOWTIDE_GUARD=1 checks the arena at every step of a plan;
    LOWTIDE_DISABLE_PASSES and LOWTIDE_DISABLE_KERNELS are comma-separated names (kernels: or providers)."""
    return {
        "guard": environment.is_on("LOWTIDE_GUARD"),
        "disabled_passes": environment.names_in("LOWTIDE_DISABLE_PASSES"),
        "disabled_kernels": environment.names_in("LOWTIDE_DISABLE_KERNELS"),
        "fault": fault(),
        **cast_propagation(),
    }


def fault():
    """LOWTIDE_TEST_FAULT, a value of the training graph and a factor, or an ATen call whose lowering fails; for tests
    of what finds faults."""
    text = environment.read("LOWTIDE_TEST_FAULT")
    if not text:
        return "", 1.0
    if "::" in text:
        return text, 1.0
    value, _, factor = text.rpartition(":")
    try:
        return value, float(factor)
    except ValueError:
        raise InvalidArgument(
            f"LOWTIDE_TEST_FAULT is '{text}', expected VALUE:FACTOR, as in gelu_7:1.001, or an ATen call"
        ) from None


def cast_propagation():
    """LOWTIDE_PROPAGATE_CAST_OPS_LEVEL (ORTModule's propagate_cast_ops_level) is 0, 1 or 2;
    LOWTIDE_PROPAGATE_CAST_OPS_ALLOW are comma-separated names of ops that casts may move over at any level."""
    level = environment.read("LOWTIDE_PROPAGATE_CAST_OPS_LEVEL") or "1"
    if level not in ("0", "1", "2"):
        raise InvalidArgument(f"LOWTIDE_PROPAGATE_CAST_OPS_LEVEL is '{level}', expected 0, 1 or 2")
    return {"cast_level": int(level), "cast_allow": environment.names_in("LOWTIDE_PROPAGATE_CAST_OPS_ALLOW")}


@dataclass(frozen=True)
class MemoryOptions:
    """What the memory optimizer is asked for."""

    config: str = ""  # "FastGelu+:1:12,Cast+:2:-1", or the path of a JSON file with a list of such strings
    level: int = 0  # 0: `config`; 1: every plain plan inside each layer; 2: compromised plans too
    probe: str = ""  # "level:boundary"
    knee: bool = False  # level "auto": the plan behind which a further byte costs more than on average
    budget: Budget | None = None  # of a step; level, knee and config are left alone then

    @property
    def level_name(self):
        return "auto" if self.knee else str(self.level)

    @property
    def on(self):
        return self.budget is None and (self.level > 0 or self.knee or bool(self.config.strip()))

    @property
    def notice(self):
        """One line where a budget, or level auto, stands beside what it takes the place of, else None."""
        ignored = []
        if self.budget is not None and self.level_name != "0":
            ignored.append(f"ORTMODULE_MEMORY_OPT_LEVEL={self.level_name}")
        if (self.budget is not None or self.knee) and self.config.strip():
            ignored.append("ORTMODULE_MEMORY_OPT_CONFIG")
        if not ignored:
            return None
        chooses = "ORTMODULE_MEMORY_OPT_LEVEL=auto" if self.budget is None else "the memory budget"
        return f"{chooses} chooses the plan; {' and '.join(ignored)} {'is' if len(ignored) == 1 else 'are'} ignored"

    def for_session(self):
        keywords = {"memory_config": self.config, "memory_level": self.level, "probe_config": self.probe}
        if self.knee:
            keywords = {"memory_knee": True}
        if self.budget is not None:
            keywords = {"memory_budget": self.budget.bytes, "memory_budget_fraction": self.budget.fraction}
        return {name: value for name, value in keywords.items() if value}


def memory_options(budget=None, level=None, config=None):
    """ORTMODULE_MEMORY_OPT_CONFIG, ORTMODULE_MEMORY_OPT_LEVEL and ORTMODULE_MEMORY_OPT_PROBE_CONFIG; `budget`: what
    asked_budget() gave; `level`, `config`: in the place of the variables."""
    name = "ORTMODULE_MEMORY_OPT_LEVEL" if level is None else "memory_level"
    level = environment.read(name) if level is None else str(level)
    if level not in ("", *MEMORY_LEVELS):
        known = ", ".join(f"{number} ({meaning})" for number, meaning in MEMORY_LEVELS.items())
        raise InvalidArgument(f"{name} is '{level}', expected one of {known}")
    return MemoryOptions(
        environment.read("ORTMODULE_MEMORY_OPT_CONFIG") if config is None else config,
        0 if level == "auto" else int(level or 0),
        environment.read("ORTMODULE_MEMORY_OPT_PROBE_CONFIG"),
        level == "auto",
        budget,
    )
