"""Tensors that are real in a trace: attributes that are no buffers, globals, elements of lists, and what is computed of
nothing but those.

Where an op has nothing but real tensors and numbers, PyTorch's exporter computes it: `self.steps += 1` would write in
each trace, and once more in the call that it is made for. Through an alias, which is none of them, the write is in the
graph alone. And the exporter answers what forward asks of their numbers: the answers are right for calls that find the
same tensors, as nobody has written them, and wrong behind a write of forward's own.
"""

import weakref

import torch
from torch._subclasses.fake_tensor import FakeTensor

from lowtide.errors import UnsupportedError

from .plain_numbers import CONVERSIONS

_WRITES = frozenset(
    getattr(torch.Tensor, name)
    for name in (
        *(
            "add_",
            "sub_",
            "subtract_",
            "mul_",
            "multiply_",
            "div_",
            "divide_",
            "true_divide_",
            "floor_divide_",
            "copy_",
        ),
        *("__iadd__", "__isub__", "__imul__", "__idiv__", "__itruediv__", "__ifloordiv__", "__setitem__"),
    )
)
_ASKS_FOR_NUMBERS = CONVERSIONS.keys() | {
    getattr(torch.Tensor, name)
    for name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__repr__", "__format__")
}
_PLAIN = (bool, int, float, complex, list, str)  # what is a node of the graph is symbolic


class RealTensors:
    """Of one trace."""

    def __init__(self, seen):
        self._seen = seen  # guards.seen.Seen
        self._computed = {}  # id → (weak reference to a result, the real tensors that it is computed of)
        self._asked = {}  # id → (a real tensor, how often it was written when forward asked for its numbers)
        self._found = {}  # id → (a real tensor, how often it was written when a call first had it)

    def call(self, func, args, kwargs):
        """func(*args, **kwargs), which writes into none."""
        tensors = [arg for arg in _leaves(args, kwargs) if isinstance(arg, torch.Tensor)]
        sources = {id(real): real for tensor in tensors for real in self._sources(tensor)}
        if not sources:
            return func(*args, **kwargs)
        for key, real in sources.items():
            self._found.setdefault(key, (real, real._version))
        result = _past_real(func, args, kwargs)
        if func in _ASKS_FOR_NUMBERS and type(result) in _PLAIN:
            self._ask(sources)
        if isinstance(result, FakeTensor) and all(self._sources(tensor) for tensor in tensors):
            self._computed[id(result)] = weakref.ref(result), tuple(sources.values())
        return result

    def refuse_written(self):
        """At the end of forward: UnsupportedError where it has written one whose numbers it asked for, which no later
        call finds as it was."""
        for real, version in self._asked.values():
            if real._version != version:
                _refuse()

    def _ask(self, sources):
        for key, real in sources.items():
            if real._version != self._found[key][1]:
                _refuse()
            self._asked[key] = real, real._version
            self._seen.note_numbers(real)

    def _sources(self, tensor):
        if not isinstance(tensor, FakeTensor):
            return () if tensor.is_inference() else (tensor,)
        reference, sources = self._computed.get(id(tensor), (None, ()))
        return sources if reference is not None and reference() is tensor else ()


def _past_real(func, args, kwargs):
    target = args[0] if func in _WRITES else kwargs.get("out")
    if not isinstance(target, torch.Tensor) or isinstance(target, FakeTensor):
        return func(*args, **kwargs)
    alias = torch.ops.aten.alias.default(target)
    if func in _WRITES:
        result = func(alias, *args[1:], **kwargs)
    else:
        result = func(*args, **{**kwargs, "out": alias})
    return target if result is alias else result


def _leaves(args, kwargs):
    for arg in (*args, *kwargs.values()):
        if isinstance(arg, list | tuple):
            yield from arg
        else:
            yield arg


def _refuse():
    raise UnsupportedError("forward reads as Python's numbers those of a tensor that it writes, no buffer")
