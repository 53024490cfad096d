"""Garbage of others while torch.export follows a forward."""

import contextlib
import gc


@contextlib.contextmanager
def garbage_waits():
    """Nobody's garbage is collected meanwhile: what its finalizers compute would be traced as a part of forward."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
