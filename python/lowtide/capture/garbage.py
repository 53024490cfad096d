"""Garbage while torch.export follows a forward, and after it."""

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


def collect_young():
    """The exporter leaves cycles behind that hold parameters: without them a module goes with its last reference."""
    gc.collect(1)
