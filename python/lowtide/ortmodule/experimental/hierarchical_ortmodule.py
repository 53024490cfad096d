"""HierarchicalORTModule: the largest parts of a model that the engine can run, each wrapped, the rest in PyTorch."""

import contextlib

import torch

from lowtide.capture import capture
from lowtide.errors import UnsupportedError
from lowtide.log import logger

from ..options import DebugOptions
from ..ortmodule import ORTModule


class HierarchicalORTModule(torch.nn.Module):
    """Like ORTModule for a model that is not captured as a whole: its submodules are, from the outside inwards.

    The first call decides. Where the whole model can be captured it is wrapped; else that call runs in PyTorch, and
    each submodule that could be captured for all calls that it got is wrapped from then on. Names of parameters, in
    state_dict too, begin with "_original_module.", as ORTModule's did.
    """

    def __init__(self, module, debug_options=None):
        super().__init__()
        self._original_module = module
        self._options = debug_options or DebugOptions()
        self._decided = False

    def forward(self, *args, **kwargs):
        if self._decided:
            return self._original_module(*args, **kwargs)
        if _can_capture(self._original_module, [(args, kwargs)]):
            self._original_module = ORTModule(self._original_module, self._options)
            self._decided = True
            return self._original_module(*args, **kwargs)
        with _calls_of_children(self._original_module) as calls:
            result = self._original_module(*args, **kwargs)
        wrapped = {}  # a child that stands in several places has one wrapper
        self._wrap_children(self._original_module, calls, wrapped)
        logger.info("wrapped parts of %s: %s", type(self._original_module).__name__, len(wrapped))
        self._decided = True
        return result

    def _wrap_children(self, module, calls, wrapped):
        for name, child in list(module.named_children()):
            if child not in wrapped and child in calls and _can_capture(child, calls[child]):
                wrapped[child] = ORTModule(child, self._options)
            if child in wrapped:
                setattr(module, name, wrapped[child])
            else:
                self._wrap_children(child, calls, wrapped)


@contextlib.contextmanager
def _calls_of_children(module):
    """{submodule: [(args, kwargs)]} of what runs inside."""
    calls = {}

    def note(child, args, kwargs):
        calls.setdefault(child, []).append(torch.utils._pytree.tree_map(_kept, (args, kwargs)))

    handles = [
        child.register_forward_pre_hook(note, with_kwargs=True) for child in module.modules() if child is not module
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _kept(leaf):
    """Without its graph: only what the tensor is matters to a capture."""
    return leaf.detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf


def _can_capture(module, calls):
    try:
        for args, kwargs in calls:
            capture(module, args, kwargs)
    except UnsupportedError as error:
        logger.info("%s is not wrapped as a whole: %s", type(module).__name__, error)
        return False
    return True
