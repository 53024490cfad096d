"""Functions under functools.cache and lru_cache while forward is traced: tables of rotary angles, masks by size.

A result that was kept would be the trace's own tensor, and no size that a graph keeps free is a key. So in forward
something else stands for such a function:

    mask(8, x.device)           runs outside of the trace: the cache has a real tensor, as PyTorch's call would leave
                                it, and the graph has it as a constant
    mask(x.shape[1], x.device)  is traced as if nothing were cached, once in a forward: the graph computes it
    mask(x)                     is left to the cache: what it keeps is found after the trace (leftovers.py)

Whether it is the same to compute in each step what PyTorch's call computes once is looked at: it is of sizes, constants
and buffers, and of no draws.
"""

import functools
import gc
import sys
import types

import torch
import torch.utils._pytree as pytree

from lowtide.errors import UnsupportedModel

from .replaced import element_at, put_element
from .traced_draws import elsewhere
from .values import PLAIN, PLAIN_TENSORS

CACHED = type(functools.cache(len))  # of lru_cache, too
WITHOUT_TENSORS = ("sympy", "torch", "mpmath")  # whose caches are many and large
DEEPEST = 7  # of tensors below a cache: in the attributes of an object in a pair that is a result, for one
WIDEST = 100_000  # things on a level: a cache of other things
_NOT_LOOKED_INTO = frozenset((*WITHOUT_TENSORS, "lowtide", "numpy")) | sys.stdlib_module_names
_SYMBOLS = torch.SymInt | torch.SymFloat | torch.SymBool
_MISSING = object()
_MAY_BE_CACHED = frozenset((CACHED, staticmethod, classmethod))


def things_below(roots):
    """Level by level, what is in results: in containers and attributes. No code, and nothing that the search would not
    end in."""
    level = list(roots)
    for _ in range(DEEPEST):
        level = [thing for thing in gc.get_referents(*level) if is_of_a_result(thing)]
        yield level
        if len(level) > WIDEST:
            return


def is_of_a_result(thing):
    """By its type: isinstance() asks the thing, which may be the proxy of another that is gone."""
    return not issubclass(type(thing), types.FunctionType | types.BuiltinFunctionType | types.ModuleType | type)


class FunctionCaches:
    """Those of one trace."""

    def __init__(self, modules, is_running, is_traced):
        """`modules`: the user's, which are also looked through; is_running(), is_traced(): whether this thread is in
        forward, and in what becomes the graph."""
        self.is_running, self._modules, self._is_traced = is_running, modules, is_traced
        self._is_there = False
        self._stand_ins = {}  # id of a cache → what stands for it
        self._places = []  # (container, key, what lies there, what stands for it)
        self._known = set()  # (id of a container, key)
        self._buffers, self._inside = (), []  # ids of buffers; of each function that is traced, ids of what it made
        self.kept_for_objects = False  # whether constants depend on what keys of a cache hold, which no guard sees

    # ---- where they are

    def _find(self):
        """In all imported modules, their classes, and the attributes of the user's modules: some 100,000 things in each
        trace."""
        classes = set()  # ids of those that were looked through
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] not in _NOT_LOOKED_INTO and isinstance(module, types.ModuleType):
                for key, value in list(vars(module).items()):
                    kind = type(value)
                    if kind is CACHED:
                        self.add(vars(module), key, value)
                    elif (kind is type or issubclass(kind, type)) and vars(value).get("__module__") == name:
                        self._find_in_class(value, classes)
        for module in self._modules:
            for key, value in list(vars(module).items()):
                self.add(vars(module), key, value)
            self._find_in_class(type(module), classes)

    def _find_in_class(self, cls, known):
        for base in cls.__mro__:
            if id(base) in known:
                continue
            known.add(id(base))
            if (getattr(base, "__module__", None) or "").partition(".")[0] not in _NOT_LOOKED_INTO:
                for key, value in list(vars(base).items()):
                    if type(value) in _MAY_BE_CACHED:
                        self.add(base, key, value)

    def add(self, container, key, value):
        """What lies there, if it is one; not in a tuple or a set."""
        wrapper = type(value) if type(value) in (staticmethod, classmethod) else None
        cache = value.__func__ if wrapper else value
        if (
            type(cache) is not CACHED
            or isinstance(container, tuple | set | frozenset)
            or (id(container), key) in self._known
        ):
            return
        if (getattr(cache, "__module__", None) or "").partition(".")[0] in _NOT_LOOKED_INTO:
            return
        self._known.add((id(container), key))
        stand_in = self._stand_ins.setdefault(id(cache), StandIn(self, cache))
        self._places.append((container, key, value, wrapper(stand_in) if wrapper else stand_in))
        if self._is_there:
            put_element(container, key, self._places[-1][3])

    def __enter__(self):
        self._buffers = frozenset(id(buffer) for module in self._modules for buffer in module._buffers.values())
        self._find()
        self._is_there = True
        for container, key, _, stand_in in self._places:
            put_element(container, key, stand_in)

    def __exit__(self, kind, *_):
        self._is_there = False
        for container, key, cache, stand_in in self._places:
            if element_at(container, key) is stand_in:
                put_element(container, key, cache)
        try:
            if kind is None:
                for stand_in in self._stand_ins.values():
                    stand_in.refuse_writes()
        finally:
            self._places.clear()
            self._known.clear()
            self._stand_ins.clear()

    # ---- what they compute

    def traced(self, function, words, args, kwargs):
        """function(*args, **kwargs), in the graph."""
        self._inside.append((words, set(), []))
        try:
            result = function(*args, **kwargs)
        finally:
            _, made, _ = self._inside.pop()
        if self._inside:  # of one that calls another
            self._inside[-1][1].update(made)
        return result

    def note(self, func, args, kwargs, result):
        """A call of PyTorch's in forward."""
        if not self._inside or not self._is_traced():
            return
        words, made, alive = self._inside[-1]
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and not (id(leaf) in made or self._is_constant(leaf)):
                raise _refusal(words, "a parameter" if isinstance(leaf, torch.nn.Parameter) else "other tensors")
        if _draws(func):
            raise _refusal(words, "random numbers")
        tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        made.update(map(id, tensors))
        alive += tensors  # an id is a tensor's as long as it lives

    def _is_constant(self, tensor):
        is_real = type(tensor) in PLAIN_TENSORS and not tensor.requires_grad
        return is_real or id(tensor) in self._buffers or any(each.has_made(tensor) for each in self._stand_ins.values())


class StandIn:
    """Stands for one such function."""

    def __init__(self, caches, cache):
        self._lowtide_caches, self._lowtide_cache = caches, cache
        self._lowtide_results = {}  # of this forward: key → (result, [(tensor in it, its version)])

    def __call__(self, *args, **kwargs):
        caches, cache = self._lowtide_caches, self._lowtide_cache
        leaves, structure = pytree.tree_flatten((args, kwargs))
        if not caches.is_running() or any(isinstance(leaf, torch.Tensor) for leaf in leaves):
            return cache(*args, **kwargs)
        key = (structure, *((type(leaf), _key(leaf)) for leaf in leaves))
        try:
            found = self._lowtide_results.get(key)
        except TypeError:  # unhashable; the cache says so
            return cache(*args, **kwargs)
        if found is not None:
            return found[0]
        result = _MISSING
        if not any(isinstance(leaf, _SYMBOLS) for leaf in leaves):
            result = _in_pytorch(cache, args, kwargs)
            if tensors := () if result is _MISSING else _tensors(result):
                caches.kept_for_objects |= not all(isinstance(leaf, PLAIN) for leaf in leaves)
        if result is _MISSING:
            result = caches.traced(cache.__wrapped__, _words(cache), args, kwargs)
            tensors = _tensors(result)
        self._lowtide_results[key] = result, [(tensor, tensor._version) for tensor in tensors]
        return result

    def __get__(self, owner, cls=None):
        return self if owner is None else types.MethodType(self, owner)

    def __getattr__(self, name):
        return getattr(self._lowtide_cache, name)

    def has_made(self, tensor):
        return any(tensor is each for _, found in self._lowtide_results.values() for each, _ in found)

    def refuse_writes(self):
        """UnsupportedModel where forward has written into a result: PyTorch's next call would find it so."""
        for _, found in self._lowtide_results.values():
            if any(tensor._version != version for tensor, version in found):
                raise UnsupportedModel(
                    f"forward writes into what {_words(self._lowtide_cache)}, a cached function, keeps"
                )


def _in_pytorch(cache, args, kwargs):
    """The result that the cache keeps, or _MISSING where only the trace can compute it."""
    enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    gradients, misses = torch.is_grad_enabled(), cache.cache_info().misses

    def call():
        state = torch.default_generator.get_state()
        with torch.set_grad_enabled(gradients), torch.autocast("cpu", dtype=dtype, enabled=enabled):
            result = cache(*args, **kwargs)
        is_drawn = not torch.equal(state, torch.default_generator.get_state())
        if is_drawn:
            torch.default_generator.set_state(state)
        return result, is_drawn

    try:
        result, is_drawn = elsewhere(call)
    except Exception:  # it has tensors of the trace, perhaps, whose numbers nobody knows
        return _MISSING
    if cache.cache_info().misses == misses:
        return result
    is_of_trace = any(type(tensor) not in PLAIN_TENSORS for tensor in _tensors(result))
    if is_of_trace or is_drawn:
        cache.cache_clear()
    if is_drawn:
        raise _refusal(_words(cache), "random numbers")
    return _MISSING if is_of_trace else result


def _tensors(result):
    found = [thing for level in ([result], *things_below([result])) for thing in level]
    tensors = {id(thing): thing for thing in found if issubclass(type(thing), torch.Tensor)}
    return list(tensors.values())


def _key(leaf):
    return str(leaf) if isinstance(leaf, _SYMBOLS) else leaf


def _words(cache):
    return getattr(cache, "__qualname__", "a function")


def _refusal(words, what):
    return UnsupportedModel(
        f"{words}, a cached function, computes tensors of {what}: PyTorch does so once, not in each call"
    )


@functools.cache
def _draws(func):
    name = getattr(func, "__name__", "")
    packet = getattr(torch.ops.aten, name, None) if name[:2] != "__" else None
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return name == "gumbel_softmax"
    overloads = (getattr(packet, overload) for overload in packet.overloads())
    return any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)
