"""Training under a memory level."""

import contextlib
import os


@contextlib.contextmanager
def memory_level(level):
    """Of what is wrapped inside; None: as it is."""
    if level is not None:
        os.environ["ORTMODULE_MEMORY_OPT_LEVEL"] = str(level)
    try:
        yield
    finally:
        os.environ.pop("ORTMODULE_MEMORY_OPT_LEVEL", None)


def recomputes(module):
    return any(row["on"] for row in module.memory_opportunities())
