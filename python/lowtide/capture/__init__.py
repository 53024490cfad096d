"""nn.Module → Graph, by torch.export: transcription only, and every assumption a guard that each call checks.

captured = capture(module, args, kwargs)
captured.graph.text()
captured.accepts(Call(args, kwargs).sizes())
"""

from dataclasses import dataclass, replace

import torch

from lowtide.errors import UnsupportedError

from . import trees
from .call import DTYPES, PLAIN, Call, describe, is_array, schema_of
from .export import Exported, Facts, exclusive, export, repeats_samples, user_line
from .sizes import NeedsConstants, SizeText
from .transcribe import Source, Transcript, transcribe
from .watch import Reads

__all__ = [
    "DTYPES",
    "PLAIN",
    "Call",
    "Captured",
    "Facts",
    "Reads",
    "Source",
    "capture",
    "describe",
    "exclusive",
    "recapture",
    "schema_of",
    "transcribe_again",
    "trees",
    "user_line",
]


@dataclass
class Captured:
    exported: Exported
    transcript: Transcript
    facts: Facts

    @property
    def graph(self):
        return self.transcript.graph

    @property
    def sources(self):
        return self.transcript.sources

    @property
    def functions(self):
        return self.exported.functions

    @property
    def inspections(self):
        return self.exported.inspections

    @property
    def checkpoints(self):
        """How many calls of torch.utils.checkpoint were inlined."""
        return self.exported.functions.checkpoints

    def accepts(self, sizes):
        """Whether the graph is right for a call whose tensors have these sizes."""
        return self.transcript.sizes.accepts(sizes)

    def guards(self):
        return [guard.text for guard in self.transcript.sizes.guards]

    def rebuild(self, tensors, sizes):
        """The module's output from its tensors, in the structure that the user's forward returns."""
        rest = iter(tensors)
        leaves = []
        for leaf, is_tensor in zip(self.exported.output_leaves, self.exported.output_is_tensor, strict=True):
            if is_tensor:
                leaf = next(rest)
            elif is_array(leaf):
                leaf = leaf.copy()
            elif isinstance(leaf, torch.SymInt | SizeText):
                text = leaf.text if isinstance(leaf, SizeText) else self.transcript.sizes.python(leaf)
                leaf = int(self.transcript.sizes.evaluate(text, sizes))
            leaves.append(leaf)
        return trees.unflatten(leaves, self.exported.output_structure)


def capture(module, args=(), kwargs=None, facts=None):
    """Captures the module in its present mode, for calls like this one.

    UnsupportedError names the reason and the user's line.
    """
    call = Call(args, kwargs or {})
    facts = facts or Facts()
    try:
        exported = export(module, call, facts)
    except UnsupportedError:
        if not repeats_samples(call, facts):
            raise
        # Perhaps the code knows the example's sizes by heart.
        return capture(module, args, kwargs, replace(facts, exact=True))
    try:
        transcript = transcribe(exported, facts, module)
    except NeedsConstants as need:
        if need.dims <= facts.fixed:
            raise UnsupportedError(str(need)) from None
        return capture(module, args, kwargs, replace(facts, fixed=facts.fixed | need.dims, exact=True))
    captured = Captured(exported, transcript, facts)
    sizes = call.sizes()
    if captured.accepts(sizes):
        return captured
    return recapture(captured, module, args, kwargs)


def recapture(captured, module, args=(), kwargs=None):
    """A capture that fits a call which `captured` refuses, with what the broken guards teach."""
    call = Call(args, kwargs or {})
    sizes = call.sizes()
    facts, broken = captured.facts, captured.transcript.sizes.broken(sizes)
    ties = frozenset(frozenset(guard.tie) for guard in broken if guard.tie)
    moved = frozenset(guard.fixed for guard in broken if guard.fixed and guard.fixed not in facts.fixed)
    facts = replace(facts, untied=facts.untied | ties, moving=facts.moving | moved)
    if ties and len(ties) == len(broken):
        # The model never asked for these sizes to be equal: the same export, transcribed again.
        again = transcribe_again(replace(captured, facts=facts), module, call)
        if again.accepts(sizes):
            return again
    if facts == captured.facts and facts.exact and not _other_sizes(captured, sizes):
        reasons = "; ".join(guard.text for guard in captured.transcript.sizes.broken(sizes))
        raise UnsupportedError(f"no capture fits sizes {sizes}: {reasons}")
    # The model's own code asked about sizes: with this call's, the answers are this call's.
    return capture(module, args, kwargs, replace(facts, exact=True))


def transcribe_again(captured, module, call):
    """The same export with the gradients that this call's tensors and the module's parameters ask for now."""
    if captured.exported.program is None:  # read from a file
        return capture(module, call.args, call.kwargs, captured.facts)
    flags = [tensor.requires_grad for tensor in call.tensors]
    transcript = transcribe(captured.exported, captured.facts, module, flags)
    return Captured(captured.exported, transcript, captured.facts)


def _other_sizes(captured, sizes):
    return [list(size) for size in sizes] != [list(size) for size in captured.exported.sizes]
