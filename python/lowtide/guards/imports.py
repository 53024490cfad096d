"""Modules that forward imports while it is traced. Their code runs once, for whoever imports them later: as outside of
the trace, whose tensors would else be what they hold."""

import contextlib
import importlib.abc
import sys

import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextlib.contextmanager
def imports_outside(observation):
    """While `observation` is in force; what is imported already costs nothing."""
    finder = _Finder(observation)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # a module that was imported may have put another list there
            sys.meta_path.remove(finder)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds what the others find, and has its code run outside."""

    def __init__(self, observation):
        self._observation = observation

    def find_spec(self, name, path, target=None):
        if not self._observation.is_running():
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and hasattr(spec.loader, "__dict__") and not isinstance(spec.loader, type):
            self._run_outside(spec.loader)
        return spec

    def _run_outside(self, loader):
        run = loader.exec_module

        def exec_module(module):
            del loader.exec_module
            with self._outside():
                run(module)

        loader.exec_module = exec_module

    @contextlib.contextmanager
    def _outside(self):
        observation = self._observation
        thread, observation.thread = observation.thread, None
        try:
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                yield
        finally:
            observation.thread = thread
