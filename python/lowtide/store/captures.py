"""ORTMODULE_CACHE_DIR: captured graphs on disk, so that a second start skips torch.export.

A file is found by a hash of the call and of the module's structure, and checked by one over its bytes; whether it is
right its own guards tell, of what forward read and of sizes. What was planned for a graph lies in files of its own
(plans.py).
"""

import json
import os

import torch

from lowtide.errors import InternalError
from lowtide.guards import Digest, Guards, NotCacheable, build, code_digest, first_other
from lowtide.guards.unread import is_unread
from lowtide.guards.values import PLAIN, array_key, is_array
from lowtide.log import logger

from . import files
from .text import OtherCode, from_text, to_text
from .trees import NotStorable, structure_to_json

_MAGIC = "captured graph 1"
_MOST = 16  # graphs of one key: for other sizes that the model's code asked about


class CaptureCache:
    """The files of one module in one mode."""

    def __init__(self, module, mode):
        self._module, self._mode = module, mode
        self._told = set()

    def entry(self, call, surroundings):
        """Where graphs for such calls lie; None without a folder for them, or with the reason logged."""
        folder = files.folder()
        if not folder:
            return None
        try:
            key = Digest()
            key.add(*build(), self._mode, torch.is_grad_enabled(), json.dumps(structure_to_json(call.structure)))
            leaves = [_leaf_key(leaf) for leaf in call.leaves]
            key.value([list(surroundings), leaves, list(call.firsts)], "an argument")
            key.add(Guards(self._module).digest())
        except (NotCacheable, NotStorable) as reason:
            self.say("%s is not cached: %s", type(self._module).__name__, reason)
            return None
        except Exception as error:  # of a user's property, perhaps: the training that this is about goes on
            self.say("%s is not cached: %s: %s", type(self._module).__name__, type(error).__name__, error, warn=True)
            return None
        stem = os.path.join(folder, f"{type(self._module).__name__.lower()}-{key.hex()[:32]}")
        return _Entry(self, self._module, call, stem)

    def say(self, text, *arguments, warn=False):
        """Once each."""
        message = text % arguments
        if message not in self._told:
            self._told.add(message)
            (logger.warning if warn else logger.info)("%s", message)


class _Entry:
    def __init__(self, cache, module, call, stem):
        self._cache, self._module, self._call, self._stem = cache, module, call, stem
        self._found = None  # path of what find() gave last
        self._ignored = set()  # paths of files that are none of ours

    def find(self, sizes):
        """A captured graph that is right for these sizes, the module as it is and the random numbers that come next, or
        None."""
        for path in self._paths():
            captured = self._load(path)
            if captured is None or not captured.accepts(sizes) or not captured.exported.draws.hold(self._call.tensors):
                continue
            if not captured.exported.guards.hold() or not captured.exported.guards.take(self._call.tensors):
                continue
            if first_other(captured.exported.questions, self._call.tensors, self._module) is None:
                self._cache.say("the graph of %s is read from %s", type(self._module).__name__, path)
                self._found = path
                return captured
        return None

    def reject(self, error):
        """The graph that was found cannot be built."""
        self._cache.say("%s is ignored: %s: %s", self._found, type(error).__name__, error, warn=True)
        self._ignored.add(self._found)

    def store(self, captured):
        """Adds a graph; a failure is logged, and costs the next start an export."""
        try:
            body = to_text(captured, self._module, code_digest).encode()
            files.write(self._free_path(), _MAGIC, body)
        except (NotCacheable, NotStorable) as reason:
            self._cache.say("%s is not cached: %s", type(self._module).__name__, reason)
        except OSError as error:
            self._cache.say("a captured graph cannot be cached: %s", error, warn=True)

    def _paths(self):
        return [path for number in range(_MOST) if files.is_usable(path := f"{self._stem}-{number}.graph")]

    def _free_path(self):
        """Of a file that is not there or not whole; else that of the oldest."""
        known = self._paths()
        for number in range(_MOST):
            path = f"{self._stem}-{number}.graph"
            if path not in known or path in self._ignored or files.read(path, _MAGIC) is None:
                return path
        return min(known, key=os.path.getmtime)

    def _load(self, path):
        body, reason = files.read(path, _MAGIC), "it is damaged or no captured graph"
        if body is not None:
            try:
                return from_text(body.decode(), self._module, self._call, code_digest)
            except (NotCacheable, NotStorable, OtherCode) as change:
                self._cache.say("%s is out of date: %s has changed", path, change)
                return None
            except InternalError:
                raise
            except Exception as error:  # whatever a text can be the reason of, written by who knows this code
                reason = f"it is no captured graph of this call: {type(error).__name__}: {error}"
        self._cache.say("%s is ignored: %s", path, reason, warn=True)
        self._ignored.add(path)
        return None


def _leaf_key(leaf):
    if is_unread(leaf):
        return "a string of any value"
    if is_array(leaf):
        return [repr(part) for part in array_key(leaf)]
    if not isinstance(leaf, torch.Tensor):
        return leaf if isinstance(leaf, PLAIN) else repr(leaf)
    order = sorted(range(leaf.dim()), key=lambda dim: (-leaf.stride(dim), dim))
    return type(leaf).__qualname__, leaf.dtype, leaf.dim(), leaf.requires_grad, leaf.layout, order
