"""lowtide trains PyTorch models through its own C++ runtime."""

from lowtide._lowtide import release_memory

__all__ = ["release_memory"]
__version__ = "0.1.0"
