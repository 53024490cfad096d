"""A module that has no graph as a whole: Dynamo's graphs of it in the engine, and plain Python between them."""

import logging
import threading
import time

import torch

from lowtide.capture import user_line
from lowtide.errors import Error, UnsupportedError
from lowtide.log import exporter_is_heard

from .piece import Piece

_QUIET_CALLS = 8  # in which Dynamo compiles, and says of each break what the reason of the pieces says


class Pieces:
    """`pieces(args, kwargs)` is the module's output; compiled when it is first called."""

    def __init__(self, module, debug_options, budget, verify):
        self._module, self._compiled = module, None
        self._options, self._budget, self._verify = debug_options, budget, verify
        self._refusal = None  # why there are none
        self._breaks = {}  # "model.py:41" → reason
        self._calls = 0
        self._this_call = threading.local()
        self.last = []  # pieces of the last call, in order
        self.engine_share = None  # of the last forward's time

    def configure(self, debug_options):
        """Other DebugOptions, for pieces that are found from now on."""
        self._options = debug_options

    def __call__(self, args, kwargs):
        """The module's output. UnsupportedError where Dynamo has found no graph that ran in the engine."""
        if self._refusal is not None:
            raise UnsupportedError(self._refusal)
        if self._compiled is None:
            self._compiled = torch.compile(self._module, backend=self._piece)
        self._calls += 1
        ran = self._this_call.ran = []
        begin = time.perf_counter()
        try:
            with _quiet(self._calls <= _QUIET_CALLS):
                result = self._compiled(*args, **kwargs)
        except Error:
            raise
        except Exception as error:
            if not type(error).__module__.startswith("torch._dynamo"):
                raise  # the user's own
            first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            raise UnsupportedError(f"torch.compile: {type(error).__name__}: {first}") from None
        seconds = time.perf_counter() - begin
        self.last = ran
        self.engine_share = sum(piece.seconds for piece in ran if piece.fallback_reason is None) / seconds
        return result

    def refuse(self, reason):
        """No further call tries: PyTorch can run what Dynamo cannot."""
        self._refusal = reason

    def words(self):
        """How the last call ran: "3 of 3 pieces in the engine, 97% of forward's time; breaks: model.py:41 (…)"; None
        where PyTorch ran all of it."""
        native = sum(piece.fallback_reason is None for piece in self.last)
        if not native:
            return None
        text = f"{native} of {len(self.last)} pieces in the engine, {self.engine_share:.0%} of forward's time"
        if self._breaks:
            text += f"; breaks: {', '.join(f'{where} ({why})' for where, why in self._breaks.items())}"
        reasons = dict.fromkeys(piece.fallback_reason for piece in self.last if piece.fallback_reason)
        return text + "".join(f"; in PyTorch: {reason}" for reason in reasons)

    def _piece(self, graph_module, _):
        """The backend of these graphs."""
        reason = getattr(graph_module, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            self._breaks[user_line(reason.user_stack) or "?"] = _short(reason.reason)
        piece = Piece(graph_module, self._options, None, self._budget, self._verify)

        def call(*inputs):
            self._this_call.ran.append(piece)
            return piece(*inputs)

        return call


def _short(reason):
    """Its first line, in words."""
    first = next((line.strip() for line in str(reason).splitlines() if line.strip()), "")
    return "a branch on data" if first.startswith("generic_jump") else first.removeprefix("Unsupported ")


class _quiet:
    """Dynamo warns of each break."""

    def __init__(self, on):
        self._logger = logging.getLogger("torch._dynamo") if on and not exporter_is_heard() else None

    def __enter__(self):
        if self._logger is not None:
            self._level = self._logger.level
            self._logger.setLevel(logging.CRITICAL)

    def __exit__(self, *_):
        if self._logger is not None:
            self._logger.setLevel(self._level)
