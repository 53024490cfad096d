"""lowtide trains PyTorch models through its own C++ runtime."""

import importlib

from lowtide._lowtide import pool_bytes, release_memory

__all__ = ["ORTModule", "ortmodule", "pool_bytes", "release_memory"]
__version__ = "0.1.0"

OLDEST_TORCH = (2, 10)
INSTALL_TORCH = "lowtide needs PyTorch {}.{} or newer, which is not installed: pip install torch".format(*OLDEST_TORCH)


def __getattr__(name):
    """What needs PyTorch is imported when it is asked for: `import lowtide` alone works without."""
    if name not in ("ORTModule", "ortmodule"):
        raise AttributeError(f"module 'lowtide' has no attribute '{name}'")
    try:
        module = importlib.import_module("lowtide.ortmodule")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(INSTALL_TORCH, name="torch") from None
    return module if name == "ortmodule" else module.ORTModule


def __dir__():
    return sorted({*globals(), *__all__})
