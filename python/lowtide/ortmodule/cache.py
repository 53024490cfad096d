"""ORTMODULE_CACHE_DIR: captured graphs on disk, so that a second start skips torch.export.

A file is found by a hash of all that its graph depends on (fingerprint.py) and checked by one over its bytes; its
guards decide which calls it serves. What was planned for a graph lies in files of its own (stored_plans.py).
"""

import contextlib
import os

import torch

from lowtide.capture.stored import OtherCode, from_text, to_text
from lowtide.capture.stored_trees import NotStorable, structure_to_json
from lowtide.errors import Error
from lowtide.log import logger

from . import environment, stored_files
from .fingerprint import NotCacheable, code_digest, fingerprint

_MAGIC = "captured graph 1"
_MOST = 16  # graphs of one key: for other sizes that the model's code asked about


class CaptureCache:
    """The files of one module in one mode."""

    def __init__(self, module, mode):
        self._module, self._mode = module, mode
        self._told = set()

    def entry(self, call, surroundings):
        """Where graphs for such calls lie; None without ORTMODULE_CACHE_DIR, or with the reason logged."""
        folder = environment.read("ORTMODULE_CACHE_DIR")
        if not folder:
            return None
        try:
            key = fingerprint(
                self._module,
                self._mode,
                torch.is_grad_enabled(),
                surroundings,
                structure_to_json(call.structure),
                [_leaf_key(leaf) for leaf in call.leaves],
            )
        except (NotCacheable, NotStorable) as reason:
            self.say("%s is not cached: %s", type(self._module).__name__, reason)
            return None
        except Exception as error:  # of a user's property, perhaps: the training that this is about goes on
            self.say("%s is not cached: %s: %s", type(self._module).__name__, type(error).__name__, error, warn=True)
            return None
        return _Entry(self, self._module, os.path.join(folder, f"{type(self._module).__name__.lower()}-{key[:32]}"))

    def say(self, text, *arguments, warn=False):
        """Once each."""
        message = text % arguments
        if message not in self._told:
            self._told.add(message)
            (logger.warning if warn else logger.info)("%s", message)


class _Entry:
    def __init__(self, cache, module, stem):
        self._cache, self._module, self._stem = cache, module, stem
        self._unusable = set()  # numbers of files that were ignored: their places are as good as free ones

    def find(self, sizes):
        """A captured graph that is right for these sizes, or None."""
        for number in range(_MOST):
            path = self._path(number)
            if not os.path.exists(path):
                return None
            captured = self._load(path)
            if captured is None:
                self._unusable.add(number)
            elif captured.accepts(sizes):
                self._cache.say("the graph of %s is read from %s", type(self._module).__name__, path)
                return captured
        return None

    def store(self, captured):
        """Adds a graph; a failure is logged, and costs the next start an export."""
        try:
            body = to_text(captured, self._module, code_digest).encode()
            numbers = (number for number in range(_MOST) if self._is_free(number))
            if (number := next(numbers, None)) is not None:
                stored_files.write(self._path(number), _MAGIC, body)
                self._unusable.discard(number)
        except (NotCacheable, NotStorable) as reason:
            self._cache.say("%s is not cached: %s", type(self._module).__name__, reason)
        except OSError as error:
            self._cache.say("a captured graph cannot be cached: %s", error, warn=True)

    def _path(self, number):
        return f"{self._stem}-{number}.graph"

    def _is_free(self, number):
        return number in self._unusable or stored_files.read(self._path(number), _MAGIC) is None

    def _load(self, path):
        body = stored_files.read(path, _MAGIC)
        if body is not None:
            # The bytes are those that were written, but perhaps by who knows no better than this code what they mean.
            with contextlib.suppress(Error, ValueError, KeyError, TypeError, AttributeError, ImportError, IndexError):
                try:
                    return from_text(body.decode(), self._module, code_digest)
                except (NotCacheable, NotStorable, OtherCode) as reason:
                    self._cache.say("%s is out of date: %s", path, reason)
                    return None
        self._cache.say("%s is ignored: it is damaged or no captured graph", path, warn=True)
        return None


def _leaf_key(leaf):
    if not isinstance(leaf, torch.Tensor):
        return leaf
    order = sorted(range(leaf.dim()), key=lambda dim: (-leaf.stride(dim), dim))
    return type(leaf).__qualname__, leaf.dtype, leaf.dim(), leaf.requires_grad, leaf.layout, order
