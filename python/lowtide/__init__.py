"""lowtide trains PyTorch models through its own C++ runtime."""

__version__ = "0.1.0"
