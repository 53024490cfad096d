"""ORTMODULE_CACHE_DIR: captured graphs on disk, so that a second start skips torch.export.

A file is found by a hash of all that its graph depends on (fingerprint.py) and checked by one over its bytes; its
guards decide which calls it serves. Sessions are planned anew from it: that takes a small part of what an export takes,
and no option of a plan can then be stale.
"""

import contextlib
import hashlib
import os
import tempfile

import torch

from lowtide.capture.stored import NotStorable, from_text, structure_to_json, to_text
from lowtide.errors import Error
from lowtide.log import logger

from . import environment
from .fingerprint import NotCacheable, fingerprint

_MAGIC = b"lowtide captured graph 1 "
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

    def find(self, sizes):
        """A captured graph that is right for these sizes, or None."""
        for number in range(_MOST):
            path = self._path(number)
            if not os.path.exists(path):
                return None
            captured = self._load(path)
            if captured is not None and captured.accepts(sizes):
                self._cache.say("the graph of %s is read from %s", type(self._module).__name__, path)
                return captured
        return None

    def store(self, captured):
        """Adds a graph; a failure is logged, and costs the next start an export."""
        try:
            body = to_text(captured, self._module).encode()
            # The place of a damaged file is as good as a free one.
            numbers = (number for number in range(_MOST) if self._read(self._path(number)) is None)
            if (number := next(numbers, None)) is not None:
                _write(self._path(number), _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        except NotStorable as reason:
            self._cache.say("%s is not cached: %s", type(self._module).__name__, reason)
        except OSError as error:
            self._cache.say("a captured graph cannot be cached: %s", error, warn=True)

    def _path(self, number):
        return f"{self._stem}-{number}.graph"

    def _read(self, path):
        """The body of a file, or None where it is none of ours, or not whole."""
        try:
            with open(path, "rb") as file:
                header, _, body = file.read().partition(b"\n")
        except OSError:
            return None
        whole = header == _MAGIC + hashlib.sha256(body).hexdigest().encode()
        return body if whole else None

    def _load(self, path):
        body = self._read(path)
        if body is not None:
            # The bytes are those that were written, but perhaps by who knows no better than this code what they mean.
            with contextlib.suppress(Error, ValueError, KeyError, TypeError, AttributeError, ImportError, IndexError):
                return from_text(body.decode(), self._module)
        self._cache.say("%s is ignored: it is damaged or no captured graph", path, warn=True)
        return None


def _write(path, data):
    """All of it or nothing: other processes may read and write the same file now."""
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _leaf_key(leaf):
    if not isinstance(leaf, torch.Tensor):
        return leaf
    order = sorted(range(leaf.dim()), key=lambda dim: (-leaf.stride(dim), dim))
    return type(leaf).__qualname__, leaf.dtype, leaf.dim(), leaf.requires_grad, leaf.layout, order
