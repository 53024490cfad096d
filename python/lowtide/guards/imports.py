"""Modules that forward imports while it is traced. Their code runs once, for whoever imports them later: as outside of
the trace, whose tensors would else be what they hold."""

import builtins
import contextlib
import functools
import importlib

import torch
from torch.utils._python_dispatch import _disable_current_modes


def imports_outside(observation):
    """[(owner, name, what stands in the place of this function while `observation` is in force)]."""
    functions = (builtins, "__import__"), (importlib, "import_module")
    return [(owner, name, _importing(getattr(owner, name), observation)) for owner, name in functions]


def _importing(function, observation):
    @functools.wraps(function)
    def imported(*args, **kwargs):
        if not observation.is_running():
            return function(*args, **kwargs)
        with _outside(observation):
            return function(*args, **kwargs)

    return imported


@contextlib.contextmanager
def _outside(observation):
    thread, observation.thread = observation.thread, None
    try:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            yield
    finally:
        observation.thread = thread
