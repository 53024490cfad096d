"""A module that has no graph as a whole: Dynamo's graphs of it in the engine, and plain Python between them."""

import gc
import logging
import sys
import threading
import time
import traceback
import weakref

import torch

from lowtide._lowtide import PoolKeepsNone
from lowtide.capture import for_pytorch, is_of_whole_numbers, undoing_transforms, user_line
from lowtide.distributed import is_distributed
from lowtide.errors import Error, UnsupportedError
from lowtide.guards.readers import outwards, running
from lowtide.log import exporter_is_heard

from .inference_manager import InferenceManager
from .piece import Piece
from .pieces_step import SharesOfTime, StepOfPieces
from .pieces_within import Submodules, compiled_alone
from .resident import Resident
from .shared_room import SharedRoom
from .sparse_embeddings import SparseEmbeddings
from .step_budget import StepBudget, TotalBudget
from .training_manager import TrainingManager
from .whole_submodule import WholeSubmodules

_DYNAMO = {
    "use_numpy_random_stream": True,  # else PyTorch's generator draws in the place of NumPy's
    "allow_unspec_int_on_nn_module": True,  # else a module that counts its calls is compiled in each, up to a limit
    "allow_rnn": True,  # else each recurrent layer stands between pieces, in PyTorch
    "skip_nnmodule_hook_guards": False,  # else a hook that is registered later never runs
    "accumulated_recompile_limit": sys.maxsize,  # of all wrappers that there have been; each has its own beside it
}
if hasattr(torch._dynamo.config, "trace_autograd_ops"):  # not in PyTorch 2.10
    # Else torch.autograd.grad stands between pieces, where both of its ends may come out of one.
    _DYNAMO["trace_autograd_ops"] = True
_MOST_CALLS_WITHOUT = 3  # a piece, where some have run: then Dynamo compiles no more
_QUIET_CALLS = 8  # in which Dynamo compiles, and says of each break what the reason of the pieces says


def _is_of_dynamo(error):
    """Whether Dynamo has stumbled over itself: its code has raised it, and no code of the user's or of PyTorch's."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "").startswith("torch._dynamo.")


class Pieces:
    """The module is compiled when it is first called."""

    def __init__(self, module, debug_options, budget, verify):
        self._module, self._compiled = module, None
        self._found = []  # Piece
        self._has_parameters = next(module.parameters(), None) is not None
        pieces = weakref.proxy(self)  # Dynamo keeps what it has compiled beyond the module's last reference
        self._backend = lambda graph_module, _: pieces._piece(graph_module)
        self._submodules = Submodules(module, self._backend)
        self._sparse_embeddings = SparseEmbeddings(module)
        self._options, self._budget, self._verify = debug_options, budget, verify
        self.whole_submodules = WholeSubmodules(module, lambda *submodule: pieces._managers_of(*submodule))
        self._refusal = None  # why there are none
        self._breaks = {}  # "model.py:41" → (reason, submodules that were running)
        self._calls = 0
        self._leaves_garbage = False  # the last call, which found pieces
        self._calls_without, self._has_run = 0, False  # any piece, in a row; whether one has run at this depth
        self._this_call = threading.local()
        self._shares = SharesOfTime(module.parameters)
        self._room_for_pytorch = None  # PoolKeepsNone, where it runs pieces of the last call, which may be the largest
        if budget is None:
            self._allowance = SharedRoom()
        elif budget.bytes:
            self._allowance = StepBudget(TotalBudget(budget, Resident(module) if budget.is_total else None))
        else:
            self._allowance = None  # a part of the plan without a budget is a part of each piece's

    def configure(self, debug_options):
        """Other DebugOptions, for pieces that are found from now on."""
        self._options = debug_options

    @property
    def may_refuse(self):
        """Whether the next call may find, behind some that have run, code that Dynamo cannot compile."""
        return self._refusal is None and (self._calls <= _QUIET_CALLS or self._leaves_garbage)

    def __call__(self, args, kwargs):
        """(the module's output, StepOfPieces). UnsupportedError where Dynamo cannot compile it."""
        if self._refusal is not None:
            raise UnsupportedError(self._refusal)
        if isinstance(self._module, torch.jit.ScriptModule):
            raise UnsupportedError("the module is a torch.jit.ScriptModule")
        if self._compiled is None:
            self._compiled = compiled_alone(self._module, self._backend)
        if self._leaves_garbage:
            gc.collect()  # Dynamo's, which holds the call's outputs
        found, self._leaves_garbage = len(self._found), False
        call = self._module if self._submodules.depth else self._compiled
        self._calls += 1
        wholes = self.whole_submodules
        ran = self._this_call.ran = []
        self._shares.call_begins()
        if self._allowance is not None and torch.is_grad_enabled():
            self._allowance.call_begins()
        begin = time.perf_counter()
        try:
            with (
                _quiet(self._calls <= _QUIET_CALLS),
                torch._dynamo.config.patch(_DYNAMO),
                self._submodules.compiled(),
                wholes.in_place(ran),
                self._sparse_embeddings.apart(),
            ):
                result = undoing_transforms(call, *args, **kwargs)
        except Error:
            raise
        except Exception as error:
            if not type(error).__module__.startswith("torch._dynamo") and not _is_of_dynamo(error):
                raise  # the user's own
            first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            raise UnsupportedError(f"torch.compile: {type(error).__name__}: {first}") from None
        if self._allowance is not None and torch.is_grad_enabled():
            self._allowance.call_ended(all(one.agent is not None for one in ran))
        if all(one.agent is not None for one in ran):
            self._room_for_pytorch = None
        else:
            self._room_for_pytorch = self._room_for_pytorch or PoolKeepsNone()
        if not is_distributed():
            wholes.choose()
        self._leaves_garbage = len(self._found) > found
        self._shares.call_ended(ran, time.perf_counter() - begin, result)
        self._calls_without = 0 if ran else self._calls_without + 1
        if self._calls_without >= (_MOST_CALLS_WITHOUT if self._has_run else 1):
            self._go_deeper()
        self._has_run = self._has_run or bool(ran)
        breaks = {line: why for line, (why, where) in self._breaks.items() if not wholes.cover(where)}
        arena_bytes = self._allowance.arena_bytes if self._allowance is not None and torch.is_grad_enabled() else None
        return result, StepOfPieces(ran, breaks, self._shares.of(ran), arena_bytes)

    def refuse(self, reason):
        """PyTorch can run what Dynamo cannot: further calls try the submodules, if there are any."""
        if not self._go_deeper():
            self._refusal = reason

    def _go_deeper(self):
        if deeper := self._submodules.go_deeper():
            self._calls_without, self._has_run = 0, False
            self._breaks = {"forward": ("Dynamo finds no graph in it: pieces begin in submodules", ())}
        return deeper

    def _managers_of(self, submodule, reads_tables):
        facts = {"is_piece": True, "reads_tables": reads_tables}
        training = TrainingManager(
            submodule, self._options, None, self._budget, self._verify, allowance=self._allowance, **facts
        )
        return InferenceManager(submodule, self._options, **facts), training

    def _piece(self, graph_module):
        """What runs in the place of one of Dynamo's graphs. Whole numbers alone (places of images among tokens) are
        PyTorch's to compute, as what is between pieces: they need no backward, and their sizes change in each call."""
        reason = getattr(graph_module, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            where = running(outwards(sys._getframe()), self._module)
            self._breaks[user_line(reason.user_stack) or "?"] = _short(reason.reason), where
            self.whole_submodules.dynamo_broke(where)
        if self._has_parameters and is_of_whole_numbers(graph_module):
            return for_pytorch(graph_module)
        self._found.append(Piece(graph_module, self._options, None, self._budget, self._verify, self._allowance))
        pieces, piece = weakref.proxy(self), weakref.proxy(self._found[-1])

        def call(*inputs):
            result = piece(*inputs)
            pieces._this_call.ran.append(piece.last_run())
            return result

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
