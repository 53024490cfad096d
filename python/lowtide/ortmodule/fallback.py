"""Which failures of the engine PyTorch takes over (ORTMODULE_FALLBACK_POLICY), and what users hear of it."""

import enum
import re
import sys
import warnings
from dataclasses import dataclass

import torch

from lowtide import OLDEST_TORCH, environment
from lowtide.errors import (
    BadInitialization,
    EngineError,
    FallbackWarning,
    GraphError,
    InternalError,
    InvalidArgument,
    OutOfMemory,
    UnsupportedData,
    UnsupportedDevice,
    UnsupportedError,
    UnsupportedModel,
)
from lowtide.log import LogLevel, is_first_rank, logger

# The names that scripts of ORTModule's users know.
ORTModuleFallbackException = UnsupportedError
ORTModuleInitException = BadInitialization
ORTModuleDeviceException = UnsupportedDevice
ORTModuleIOError = UnsupportedData
ORTModuleTorchModelException = UnsupportedModel
ORTModuleONNXModelException = UnsupportedError

_MOST_WARNINGS = 8  # of one manager


class FallbackPolicy(enum.IntFlag):
    FALLBACK_DISABLE = 1  # wins over all others: every failure is raised
    FALLBACK_FORCE_TORCH_FORWARD = 2  # whatever fails in forward, out of memory too
    FALLBACK_FORCE_TORCH_BACKWARD = 4  # backward is PyTorch's, so forward of calls with gradients too
    FALLBACK_UNSUPPORTED_DEVICE = 8
    FALLBACK_UNSUPPORTED_DATA = 16
    FALLBACK_UNSUPPORTED_TORCH_MODEL = 32
    FALLBACK_UNSUPPORTED_ONNX_MODEL = 64  # a graph that cannot be exported, planned, or run for a fault of ours
    FALLBACK_BAD_INITIALIZATION = 128


_DEFAULT = (
    FallbackPolicy.FALLBACK_UNSUPPORTED_DEVICE
    | FallbackPolicy.FALLBACK_UNSUPPORTED_DATA
    | FallbackPolicy.FALLBACK_UNSUPPORTED_TORCH_MODEL
    | FallbackPolicy.FALLBACK_UNSUPPORTED_ONNX_MODEL
)


class BackwardIsTorchs(UnsupportedError):
    """FALLBACK_FORCE_TORCH_BACKWARD asks for it."""


# The first class that fits tells the policy that takes the error; what fits none is always raised.
_POLICY_OF = (
    (BadInitialization, FallbackPolicy.FALLBACK_BAD_INITIALIZATION),
    (BackwardIsTorchs, FallbackPolicy.FALLBACK_FORCE_TORCH_BACKWARD),
    (UnsupportedDevice, FallbackPolicy.FALLBACK_UNSUPPORTED_DEVICE),
    (UnsupportedData, FallbackPolicy.FALLBACK_UNSUPPORTED_DATA),
    (UnsupportedModel, FallbackPolicy.FALLBACK_UNSUPPORTED_TORCH_MODEL),
    ((UnsupportedError, GraphError, InternalError), FallbackPolicy.FALLBACK_UNSUPPORTED_ONNX_MODEL),
    # PyTorch would run out of memory too, and an index out of range is the user's.
    ((OutOfMemory, EngineError), FallbackPolicy.FALLBACK_FORCE_TORCH_FORWARD),
)


def parse_policy(text):
    """ "FALLBACK_UNSUPPORTED_DATA|FALLBACK_UNSUPPORTED_DEVICE", or empty for the default."""
    policy = FallbackPolicy(0)
    for name in filter(None, (part.strip() for part in text.split("|"))):
        if name not in FallbackPolicy.__members__:
            known = ", ".join(FallbackPolicy.__members__)
            raise InvalidArgument(f"ORTMODULE_FALLBACK_POLICY has '{name}', expected names joined by | of {known}")
        policy |= FallbackPolicy[name]
    return policy or _DEFAULT


def policy_in_force():
    """ORTMODULE_FALLBACK_POLICY."""
    return parse_policy(environment.read("ORTMODULE_FALLBACK_POLICY"))


class Fallback:
    """What one manager of calls does about failures; the environment is read when it is made."""

    def __init__(self, log_level=LogLevel.WARNING):
        self.policy = policy_in_force()
        self._raises_bugs = environment.is_on("LOWTIDE_RAISE_BUGS")
        self.retry = environment.is_on("ORTMODULE_FALLBACK_RETRY")
        self._log_level = log_level
        self._told = set()

    def configure(self, log_level, policy):
        """None: as it is."""
        self._log_level = self._log_level if log_level is None else log_level
        self.policy = self.policy if policy is None else policy

    @property
    def disabled(self):
        return FallbackPolicy.FALLBACK_DISABLE in self.policy

    def refusal_of_backward(self):
        """Why no call that needs gradients can run in the engine, or None."""
        if FallbackPolicy.FALLBACK_FORCE_TORCH_BACKWARD not in self.policy or self.disabled:
            return None
        return Failure.of(
            BackwardIsTorchs("FALLBACK_FORCE_TORCH_BACKWARD asks for PyTorch's backward, which needs PyTorch's forward")
        )

    def takes(self, error):
        """Whether PyTorch runs the call that failed with this error."""
        if self.disabled or (self._raises_bugs and isinstance(error, InternalError)):
            return False
        for classes, policy in _POLICY_OF:
            if isinstance(error, classes):
                forced = FallbackPolicy.FALLBACK_FORCE_TORCH_FORWARD in self.policy
                return policy in self.policy or (forced and not isinstance(error, BadInitialization))
        return False

    def warn(self, module, error, pieces=None):
        """One warning for each reason, numbers in it aside, and few in all; from the first rank. `pieces`: how
        pieces of the module ran in the engine, if they did."""
        reason = reason_of(error)
        key = type(error), re.sub(r"\d+", "#", reason)
        if key in self._told or len(self._told) > _MOST_WARNINGS:
            return
        self._told.add(key)
        logger.info("why %s runs in PyTorch:", type(module).__name__, exc_info=error)
        if self._log_level > LogLevel.WARNING or (self._log_level >= LogLevel.INFO and not is_first_rank()):
            return
        text = f"{type(module).__name__} runs in PyTorch, not in lowtide: {reason}"
        if pieces:
            how = "in pieces, with Python between them, not as one graph"
            text = f"{type(module).__name__} runs {how}: {reason}; {pieces}"
        if len(self._told) > _MOST_WARNINGS:
            text = f"{type(module).__name__} falls back to PyTorch for more and more reasons; no more are shown"
        warnings.warn(text, FallbackWarning, stacklevel=users_frame())


def reason_of(error):
    """Why PyTorch runs the call, in words."""
    return f"a bug in lowtide: {error}" if isinstance(error, InternalError) else str(error)


@dataclass(frozen=True)
class Failure:
    """An error to raise again: without its frames, which hold tensors."""

    kind: type
    text: str

    @classmethod
    def of(cls, error):
        return cls(type(error), str(error))

    def error(self):
        return self.kind(self.text)


def forget(error):
    """One that was dealt with. Its frames hold the call's tensors, the wrapper and the error itself."""
    while error is not None:
        following = error.__cause__ or error.__context__
        error.__traceback__ = error.__cause__ = error.__context__ = None
        error = following


def users_frame():
    """For warnings.warn of the caller: the innermost frame outside of lowtide and PyTorch, the user's call."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("lowtide", "torch"):
        frame, level = frame.f_back, level + 1
    return level


def check_initialization():
    """BadInitialization where the engine cannot start in this process."""
    numbers = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if numbers and tuple(map(int, numbers.groups())) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise BadInitialization(f"lowtide needs PyTorch {oldest} or newer, found {torch.__version__}")
