"""The disk cache (ORTMODULE_CACHE_DIR): captured graphs and their plans, so that a later start need not make them.

What is stored is data: text that is read and checked, never code that runs.
"""

from .captures import CaptureCache
from .plans import planned_session

__all__ = ["CaptureCache", "planned_session"]
