"""Leaves that take no gradient for a part of forward: `critic.requires_grad_(False)` before the actor's loss, and True
behind it. The exporter sees one tensor all along; what forward calls in between gets it without its history."""

import weakref

import torch
from torch.utils import _pytree as pytree

SETS_GRADIENT = frozenset((torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__))
# Of the tensor itself, each of which autograd sees; other properties of a leaf have no history.
_VIEWS = frozenset(getattr(torch.Tensor, name).__get__ for name in ("T", "H", "mT", "mH", "real", "imag"))
_KIND_OF_PROPERTY = type(torch.Tensor.T.__get__)
_WRITES = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__")


class FrozenLeaves:
    """Of one trace."""

    def __init__(self):
        self._frozen = weakref.WeakValueDictionary()  # id → tensor

    def note(self, tensor, before):
        """Forward has set the tensor's requires_grad, which was `before`."""
        if before and not tensor.requires_grad:
            self._frozen[id(tensor)] = tensor
        elif tensor.requires_grad:
            self._frozen.pop(id(tensor), None)

    def out_of(self, func, args, kwargs):
        """The arguments for this call, whose gradients go to none of them."""
        if not self._frozen or not torch.is_grad_enabled() or func in SETS_GRADIENT:
            return args, kwargs
        if isinstance(func, _KIND_OF_PROPERTY) and func not in _VIEWS:
            return args, kwargs
        name = getattr(func, "__name__", "")
        written = args[:1] if name in _WRITES or (name.endswith("_") and not name.startswith("__")) else ()
        read = pytree.tree_map_only(torch.Tensor, self._without_history, (args[len(written) :], kwargs))
        return (*written, *read[0]), read[1]

    def _without_history(self, tensor):
        return tensor.detach() if id(tensor) in self._frozen else tensor
