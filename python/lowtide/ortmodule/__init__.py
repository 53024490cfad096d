"""ORTModule: an nn.Module whose training runs in lowtide's engine."""

from lowtide.ported_names import missing

from .options import DebugOptions, LogLevel
from .ortmodule import ORTModule
from .pure import declare_pure

__all__ = ["DebugOptions", "LogLevel", "ORTModule", "declare_pure"]


def __getattr__(name):
    raise missing(__name__, name)
