"""Reads the preloaded memory counter (memory_counter.cpp) from the process that it counts."""

import ctypes
import os
from pathlib import Path

LIBRARY = Path(__file__).resolve().parents[2] / "build/release/benchmarks/training/liblowtide_memory_counter.so"


def counted_environment(environment=os.environ):
    """The environment in which a child process is counted."""
    if not LIBRARY.exists():
        raise FileNotFoundError(f"{LIBRARY} is not built; run ./dev build")
    preload = ":".join(filter(None, (str(LIBRARY), environment.get("LD_PRELOAD"))))
    return {**environment, "LD_PRELOAD": preload}


def is_counted():
    """Whether this process runs under the counter."""
    return hasattr(ctypes.CDLL(None), "lowtide_memory_live")


class MemoryCounter:
    """Bytes live in this process, by malloc and by mmap.

    counter.restart()      # remembers what is live now
    ...
    counter.peak_above()   # the highest number of bytes since, above what was live then
    """

    def __init__(self):
        library = ctypes.CDLL(None)
        if not hasattr(library, "lowtide_memory_live"):
            raise RuntimeError("this process does not run under the memory counter (see counted_environment)")
        self._live, self._peak = library.lowtide_memory_live, library.lowtide_memory_peak
        self._live.restype = self._peak.restype = ctypes.c_long
        self._reset = library.lowtide_memory_reset_peak
        self._reset.restype = None
        self.restart()

    def restart(self):
        self._reset()
        self._base = self._live()

    def live_above(self):
        return self._live() - self._base

    def peak_above(self):
        return self._peak() - self._base
