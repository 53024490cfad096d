"""The disk cache (ORTMODULE_CACHE_DIR): captured graphs and their plans, so that a later start need not make them; and
what a step costs on this machine, once it was measured.

What is stored is data: text that is read and checked, never code that runs.
"""

from .captures import CaptureCache
from .plans import planned_session
from .prices import measured_prices

__all__ = ["CaptureCache", "measured_prices", "planned_session"]
