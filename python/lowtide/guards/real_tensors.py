"""Tensors that are real in a trace: attributes that are no buffers, globals, elements of lists, and what is computed of
nothing but those.

Where an op has nothing but real tensors and numbers, PyTorch's exporter computes it: `self.steps += 1` would write in
each trace, and once more in the call that it is made for. Through an alias, which is none of them, the write is in the
graph alone. And the exporter answers what forward asks of their numbers: the answers are right for calls that find the
same tensors, as nobody has written them, and wrong behind a write of forward's own.
"""

import weakref

import torch

from lowtide.errors import UnsupportedError

from .plain_numbers import CONVERSIONS, WHOLE
from .values import PLAIN_TENSORS

_WRITES = frozenset(
    getattr(torch.Tensor, name)
    for name in (
        "add_ sub_ subtract_ mul_ multiply_ div_ divide_ true_divide_ floor_divide_ copy_ "
        "__iadd__ __isub__ __imul__ __idiv__ __itruediv__ __ifloordiv__ __setitem__"
    ).split()
)
_ASKS_FOR_NUMBERS = CONVERSIONS.keys() | {
    getattr(torch.Tensor, name)
    for name in "item tolist __bool__ __int__ __float__ __index__ __repr__ __format__".split()
}
# What takes tensors of one whole number as tensors; anything else may take them for sizes or indices.
_COMPUTES = frozenset(
    "add sub rsub subtract mul multiply div divide true_divide floor_divide pow float_power remainder fmod mod truediv "
    "floordiv radd rmul rtruediv rdiv rpow rfloordiv rmod iadd isub imul itruediv ifloordiv eq ne lt le gt ge equal "
    "less greater less_equal greater_equal not_equal and or xor logical_and logical_or logical_xor maximum minimum max "
    "min where clamp clip clamp_min clamp_max copy fill masked_fill lerp stack cat concat concatenate hstack vstack "
    "broadcast_tensors index_put index_select index_add index_copy index_fill gather scatter scatter_add take isin "
    "to type_as expand_as view_as bitwise_and bitwise_or bitwise_xor bucketize searchsorted".split()
)
_MAKES = frozenset("arange range zeros ones empty full eye rand randn randint randperm linspace logspace".split())
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
        elif numbers := {id(real): real for each in _as_numbers(func, args, kwargs) for real in self._sources(each)}:
            self._ask(numbers)
        if (
            isinstance(result, torch.Tensor)
            and not _is_real(result)
            and all(self._sources(tensor) for tensor in tensors)
        ):
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
        if _is_real(tensor):
            return () if tensor.layout is not torch.strided or tensor.is_inference() else (tensor,)
        reference, sources = self._computed.get(id(tensor), (None, ()))
        return sources if reference is not None and reference() is tensor else ()


def _is_real(tensor):
    """What stands for a tensor in a trace is of another class."""
    return type(tensor) in PLAIN_TENSORS


def _past_real(func, args, kwargs):
    target = args[0] if func in _WRITES else kwargs.get("out")
    if not _is_real(target):
        return func(*args, **kwargs)
    alias = torch.ops.aten.alias.default(target)
    if func in _WRITES:
        result = func(alias, *args[1:], **kwargs)
    else:
        result = func(*args, **{**kwargs, "out": alias})
    return target if result is alias else result


def _as_numbers(func, args, kwargs):
    """Those that PyTorch may read one whole number from, as a size or an index: no function sees it ask."""
    name = getattr(func, "__name__", "").strip("_")
    if name in _COMPUTES:
        args, kwargs = (), {key: kwargs[key] for key in ("alpha", "dim") if key in kwargs}
    elif name == "setitem":
        args = args[:2]
    given = (*args, *kwargs.values()) if name in _MAKES else (*args[1:], *kwargs.values())
    listed = args[0] if args and isinstance(args[0], list | tuple) else ()
    return [
        leaf
        for leaf in _leaves((*given, *listed), {})
        if isinstance(leaf, torch.Tensor) and leaf.dim() == 0 and leaf.dtype in WHOLE
    ]


def _leaves(args, kwargs):
    for arg in (*args, *kwargs.values()):
        for part in arg if isinstance(arg, list | tuple) else (arg,):
            if isinstance(part, slice):
                yield from (part.start, part.stop, part.step)
            else:
                yield part


def _refuse():
    raise UnsupportedError("forward reads as Python's numbers those of a tensor that it writes, no buffer")
