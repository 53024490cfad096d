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


@contextlib.contextmanager
def young_garbage_at_end():
    """The exporter leaves cycles behind that hold parameters: without them a module goes with its last reference. They
    are young, as nothing grows old meanwhile: a collection of all that was ever imported takes a hundred times as long.
    """
    try:
        with garbage_waits():
            yield
    finally:
        gc.collect(1)
