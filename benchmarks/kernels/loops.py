"""What the machine reaches at most (loops.cpp), on some threads at once."""

import ctypes
import threading
import time
from pathlib import Path

from lowtide._lowtide import instruction_set

LIBRARY = Path(__file__).resolve().parents[2] / "build/release/benchmarks/kernels/liblowtide_loops.so"
COPIED_BYTES = 128 << 20  # a thread: more than caches hold
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


class Loops:
    """Rates of `threads` threads together, in 1e9 FLOPs or bytes a second; 0 where there is no such instruction."""

    def __init__(self, threads, clock):
        self._library = ctypes.CDLL(str(LIBRARY))
        self._threads, self._clock = threads, clock
        self._has_tiles = instruction_set() == "amx"
        self._memory = [ctypes.create_string_buffer(COPIED_BYTES) for _ in range(threads)]

    def f32(self):
        return self._rate("loop_f32", 4_000_000)

    def bf16(self):
        return self._rate("loop_tiles" if self._has_tiles else "loop_bf16", 4_000_000)

    def copy(self):
        return self._rate("loop_copy", 4, self._memory)

    def _rate(self, name, times, memory=None):
        loop = getattr(self._library, name)
        loop.restype = ctypes.c_double
        done = [0.0] * self._threads

        def run(index):
            where = () if memory is None else (memory[index], ctypes.c_int64(COPIED_BYTES))
            done[index] = loop(*where, ctypes.c_int64(times))

        others = [threading.Thread(target=run, args=(index,)) for index in range(1, self._threads)]
        seconds = Stopwatch(self._clock, self._threads)
        for each in others:
            each.start()
        run(0)
        for each in others:
            each.join()
        return sum(done) / seconds.passed() / 1e9


class Stopwatch:
    """Seconds; by the processor's clock those of one of `threads` threads that all work."""

    def __init__(self, clock, threads):
        self._now, self._share = CLOCKS[clock], threads if clock == "processor" else 1
        self._start = self._now()

    def passed(self):
        return (self._now() - self._start) / self._share
