"""ORTModule: an nn.Module whose training runs in lowtide's engine."""

from .options import DebugOptions, LogLevel
from .ortmodule import ORTModule

__all__ = ["DebugOptions", "LogLevel", "ORTModule"]
