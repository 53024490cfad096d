"""The transitions of one mode's state machine: one table, the reasons in words, and how often each was taken.

docs/transitions.md holds the same table; a test compares them.
"""

import enum
from collections import Counter
from dataclasses import dataclass

from lowtide.log import logger


class Action(enum.Enum):
    EXPORT = "re-export"  # torch.export, import, then post-processing
    POST_PROCESS = "re-post-process"  # the same export: import, gradient graph, plan
    CONSTANT = "constant"  # a number stays part of graphs
    TORCH = "PyTorch"  # the engine leaves this call


@dataclass(frozen=True)
class Transition:
    trigger: str
    action: Action
    when: str
    example: str  # of its reason


def _table(*rows):
    return {row.trigger: row for row in rows}


TRANSITIONS = _table(
    Transition("first call", Action.EXPORT, "the mode has no graph yet", "the first call in training mode"),
    Transition(
        "argument",
        Action.EXPORT,
        "an argument has another dtype, rank, class or plain value, became None, came or went; an argument's tree has "
        "other classes or keys",
        "argument `mask` was None, is now i64[2, 16]",
    ),
    Transition(
        "number",
        Action.EXPORT,
        "an int or a float that was part of the graph has another value, among the arguments or in an attribute or a "
        "global, or forward itself changes it: an input of the graph from now on",
        "argument `alpha` was 0.1, is now 0.2: a number from now on",
    ),
    Transition(
        "string",
        Action.EXPORT,
        "a string that was part of the graph is another one: forward may not read it from now on",
        "argument `name` was 'a', is now 'b': a string from now on",
    ),
    Transition(
        "constant",
        Action.CONSTANT,
        "that export was refused, since forward needs to know the value (range(n), view(n)): each value has "
        "an export of its own",
        "the value of argument `n` stays part of each graph: forward branches on data … (model.py:7)",
    ),
    Transition(
        "sizes",
        Action.EXPORT,
        "the model's code asked about a size, and the answer is another one now",
        "sizes: x_dim0 != 1 does not hold for x f32[1, 4]",
    ),
    Transition(
        "surroundings",
        Action.EXPORT,
        "autocast around the call, the default dtype, or deterministic algorithms",
        "autocast around the call was off, is now bfloat16",
    ),
    Transition(
        "attribute",
        Action.EXPORT,
        "an attribute that forward read was set, also the training flag of any submodule, or one of a config",
        "attribute `mode` of module 'encoder' was 'sum', is now 'mean'",
    ),
    Transition(
        "global",
        Action.EXPORT,
        "a global, a variable around a function or a default that the code reads which forward ran, or that code "
        "itself",
        "global `MODE` of model was 'sum', is now 'mean'",
    ),
    Transition(
        "submodule",
        Action.EXPORT,
        "a submodule was replaced, added or removed, or got another class",
        "submodule 'encoder.fc' was replaced",
    ),
    Transition(
        "parameter",
        Action.EXPORT,
        "a parameter's dtype, shape or strides, or which names share one; another tensor of the same metadata is none",
        "parameter 'fc.weight' was f32[4, 4], is now f64[4, 4]",
    ),
    Transition(
        "buffer",
        Action.EXPORT,
        "a buffer's dtype, shape or strides, or which names share one; another tensor of the same metadata is none",
        "buffer 'mean' was f32[4], is now f32[5]",
    ),
    Transition(
        "draw",
        Action.EXPORT,
        "forward compares a random number with a number, and no graph was traced with the answers of this call",
        "draw 0: torch.rand([]) < 0.1 was False, is now True",
    ),
    Transition(
        "question",
        Action.EXPORT,
        "forward asks whether a tensor is contiguous, a leaf, a view or shared between processes, has a gradient, or "
        "for its memory, its strides or an attribute that was set on it, or compares a number that is an input, and "
        "gets another answer",
        "whether argument `a` is contiguous: was True, is now False",
    ),
    Transition("hook", Action.EXPORT, "a forward or backward hook of any module", "a forward hook of module 'fc' came"),
    Transition(
        "requires_grad asked",
        Action.EXPORT,
        "requires_grad of a parameter or an argument, where the model's code asks for it or a custom function may",
        "parameter 'fc.weight' required no gradient, does now, and forward asks for requires_grad",
    ),
    Transition(
        "requires_grad",
        Action.POST_PROCESS,
        "requires_grad of a parameter or an argument of the graph",
        "parameter 'fc.weight' required a gradient, does no longer",
    ),
    Transition(
        "limit", Action.TORCH, "a new graph is needed and the mode has all that it may", "8 exports in training mode"
    ),
    Transition("refused", Action.TORCH, "exporting, building or planning the graph failed", "forward draws from …"),
)


class TransitionLog:
    """Counts what happens in one mode, and logs it."""

    def __init__(self, name, mode):
        self._name, self._mode = name, mode
        self.counts = Counter()

    def take(self, trigger, reason):
        self.counts[trigger] += 1
        transition = TRANSITIONS[trigger]
        logger.info("%s, %s: %s: %s", self._name, self._mode, transition.action.value, reason)
