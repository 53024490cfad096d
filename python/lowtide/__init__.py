"""lowtide trains PyTorch models through its own C++ runtime."""

import importlib
import sys

from lowtide._lowtide import pool_bytes, release_memory
from lowtide.ported_names import Finder, missing

__all__ = ["ORTModule", "optim", "ortmodule", "pool_bytes", "release_memory", "utils"]
__version__ = "0.1.0"

OLDEST_TORCH = (2, 10)
INSTALL_TORCH = "lowtide needs PyTorch {}.{} or newer, which is not installed: pip install torch".format(*OLDEST_TORCH)

if Finder not in sys.meta_path:
    sys.meta_path.append(Finder)


def __getattr__(name):
    """What needs PyTorch is imported when it is asked for: `import lowtide` alone works without."""
    if name not in ("ORTModule", "optim", "ortmodule", "utils"):
        raise missing(__name__, name)
    try:
        module = importlib.import_module(f"lowtide.{name.lower()}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(INSTALL_TORCH, name="torch") from None
    return module.ORTModule if name == "ORTModule" else module


def __dir__():
    return sorted({*globals(), *__all__})
