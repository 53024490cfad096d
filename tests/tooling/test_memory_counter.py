"""The preloaded memory counter, against allocation sequences whose peak is known by hand."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TRAINING = Path(__file__).resolve().parents[2] / "benchmarks" / "training"
sys.path.insert(0, str(TRAINING))
from memory_counter import counted_environment  # noqa: E402

MB = 1 << 20
PREAMBLE = """
import ctypes, json, mmap, sys
sys.path.insert(0, sys.argv[1])
from memory_counter import MemoryCounter
libc = ctypes.CDLL(None)
for name in ("malloc", "calloc", "realloc", "aligned_alloc", "mmap", "mremap"):
    getattr(libc, name).restype = ctypes.c_void_p
P, N = ctypes.c_void_p, ctypes.c_size_t
MB = 1 << 20
def anonymous(size, address=None, flags=0):
    return libc.mmap(P(address), N(size), 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags, -1, N(0))
counter = MemoryCounter()
counter.restart()
"""


def measured(sequence):
    """Runs `sequence` under the counter: (peak, live) in MB above the start, and what it printed."""
    program = PREAMBLE + sequence + "\nprint(json.dumps([counter.peak_above() / MB, counter.live_above() / MB]))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(TRAINING)], env=counted_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "sequence, peak, live",
    [
        ("a = libc.malloc(N(8 * MB)); libc.free(P(a)); b = libc.malloc(N(4 * MB))", 8, 4),
        ("a = libc.calloc(N(8), N(MB)); b = libc.malloc(N(4 * MB)); libc.free(P(a))", 12, 4),
        ("a = libc.malloc(N(2 * MB)); a = libc.realloc(P(a), N(6 * MB)); libc.free(P(a))", 6, 0),
        ("a = libc.aligned_alloc(N(4096), N(5 * MB))", 5, 5),
        ("p = P(); libc.posix_memalign(ctypes.byref(p), N(64), N(7 * MB))", 7, 7),
        ("a = libc.realloc(P(libc.malloc(N(2 * MB))), N(1 << 62))", 2, 2),  # fails: the block stays
        ("a = anonymous(16 * MB); libc.munmap(P(a), N(16 * MB)); b = libc.malloc(N(3 * MB))", 16, 3),
        ("a = anonymous(16 * MB); libc.munmap(P(a + 4 * MB), N(8 * MB))", 16, 8),
        ("a = anonymous(16 * MB); b = anonymous(16 * MB, a, 0x10)", 16, 16),  # MAP_FIXED over the first
        ("a = anonymous(4 * MB); a = libc.mremap(P(a), N(4 * MB), N(12 * MB), 1)", 12, 12),
        ("a = anonymous(4 * MB); b = libc.malloc(N(4 * MB)); libc.munmap(P(a), N(4 * MB))", 8, 4),
        (
            "o = open(sys.executable); f = mmap.mmap(o.fileno(), 0, access=mmap.ACCESS_READ)",
            0,
            0,
        ),  # a file is no memory
    ],
)
def test_known_sequence(sequence, peak, live):
    assert measured(sequence) == pytest.approx([peak, live], abs=0.05)


def test_matmul_chain():
    """The bytes of a training step: the peak is in the backward of the last layer but one."""
    peak, _ = measured(
        """
import torch
weights = [torch.randn(512, 512, requires_grad=True) for _ in range(10)]
x, gradient = torch.randn(2048, 512), torch.randn(2048, 512)
def step():
    y = x
    for weight in weights:
        y = y @ weight
    y.backward(gradient)
    return y
step()
for weight in weights:
    weight.grad = None
counter.restart()
y = step()
"""
    )
    # Live then: y and eight inputs still saved, the input gradients of the last two layers, their weight gradients.
    expected = ((1 + 8 + 2) * 2048 * 512 * 4 + 2 * 512 * 512 * 4) / MB
    assert peak == pytest.approx(expected, abs=0.1)
