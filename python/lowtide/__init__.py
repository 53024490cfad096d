"""lowtide trains PyTorch models through its own C++ runtime."""

from lowtide._lowtide import pool_bytes, release_memory

__all__ = ["pool_bytes", "release_memory"]
__version__ = "0.1.0"
