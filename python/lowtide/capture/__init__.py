"""nn.Module → Graph, by torch.export: import only, and every assumption a guard that each call checks.

captured = capture(module, args, kwargs)
captured.graph.text()
captured.accepts(Call(args, kwargs).sizes())
"""

import contextlib
import functools
from dataclasses import dataclass, replace

from lowtide.errors import UnsupportedError
from lowtide.guards import Write, first_other
from lowtide.guards.unread import is_unread
from lowtide.guards.values import is_array

from . import trees
from .call import Call, schema_of
from .call_tensors import kept_numbers
from .containers import Filled, Given, put_into
from .dynamo import DynamoGraph
from .dynamo_bodies import for_pytorch, is_of_whole_numbers
from .examples import repeats_samples
from .export import (
    Exported,
    export,
    exports_elsewhere,
)
from .facts import Facts
from .failures import may_be_of_ones, tells_of_free_sizes, user_line
from .imported import ImportedGraph, Source
from .importer import import_program
from .kept_outputs import keep_only, parse_keep_outputs
from .known_sizes import SizeText
from .numbers import Item, difference
from .one_at_a_time import exclusive
from .output_views import output_gradients
from .refusals import hooked_modules, tensors_by_device, where_tensors_are
from .sizes import NeedsConstants
from .transforms import undoing_transforms

__all__ = [
    "Call",
    "Captured",
    "DynamoGraph",
    "Facts",
    "Filled",
    "Reads",
    "Source",
    "capture",
    "capture_with_numbers",
    "exclusive",
    "exports_elsewhere",
    "for_pytorch",
    "is_of_whole_numbers",
    "hooked_modules",
    "keep_only",
    "output_gradients",
    "parse_keep_outputs",
    "put_into",
    "recapture",
    "schema_of",
    "tensors_by_device",
    "import_again",
    "import_divided",
    "trees",
    "undoing_transforms",
    "user_line",
    "where_tensors_are",
]


@dataclass
class Captured:
    exported: Exported
    imported: ImportedGraph
    facts: Facts

    @property
    def graph(self):
        return self.imported.graph

    @property
    def sources(self):
        return self.imported.sources

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
        return self.imported.sizes.accepts(sizes)

    def guards(self):
        return [guard.text for guard in self.imported.sizes.guards]

    def rebuild(self, tensors, sizes, strings=()):
        """The module's output from its tensors, in the structure that the user's forward returns. `strings`: those of
        any value among the arguments."""
        return self.rebuild_with_writes(tensors, sizes, strings)[0]

    def rebuild_with_writes(self, tensors, sizes, strings=(), arguments=None):
        """(the module's output, what forward sets: the values of `exported.writes` that have no step). `arguments`:
        (args, kwargs) of the call."""
        tree = self._rebuilt(tensors, sizes, strings, arguments)
        return tree if self.exported.writes else (tree, ())

    def _rebuilt(self, tensors, sizes, strings, arguments):
        if self._build_output is not None:
            return self._build_output(tensors)
        rest = iter(tensors)
        leaves = []
        for leaf, is_tensor in zip(self.exported.output_leaves, self.exported.output_is_tensor, strict=True):
            if is_tensor:
                leaf = next(rest).item() if isinstance(leaf, Item) else next(rest)
            elif is_array(leaf):
                leaf = leaf.copy()
            elif is_unread(leaf):
                leaf = strings[leaf.number]
            elif type(leaf) is Given:
                leaf = trees.at(arguments, leaf.path)
            elif (size := SizeText.of(leaf, self.imported.sizes)) is not None:
                leaf = size.value(self.imported.sizes, sizes)
            leaves.append(leaf)
        return trees.unflatten(leaves, self.exported.output_structure)

    @functools.cached_property
    def _build_output(self):
        """Of an output with no other leaves than tensors, else None."""
        leaves = self.exported.output_leaves
        are_tensors = all(self.exported.output_is_tensor) and not any(isinstance(leaf, Item) for leaf in leaves)
        return trees.builder(self.exported.output_structure) if are_tensors else None


def capture(module, args=(), kwargs=None, facts=None, numbers=()):
    """Captures the module in its present mode, for calls like this one. `numbers`: as Call takes them.

    UnsupportedError names the reason and the user's line.
    """
    call = Call(args, kwargs or {}, numbers=numbers)
    facts = facts or Facts()
    try:
        exported = export(module, call, facts)
    except UnsupportedError as error:
        if error.read_strings:
            raise
        if error.assigning - facts.assigning:
            return capture(module, args, kwargs, replace(facts, assigning=facts.assigning | error.assigning), numbers)
        if error.of_sizes_and_data and not facts.large:
            return capture(module, args, kwargs, replace(facts, large=True), numbers)
        if error.of_bounds and not facts.bounded:
            return capture(module, args, kwargs, replace(facts, bounded=True), numbers)
        if facts.free:
            return capture(module, args, kwargs, replace(facts, free=False), numbers)
        if repeats_samples(call, facts) or (may_be_of_ones(error, call) and not facts.exact):
            # Perhaps the code knows the example's sizes by heart, or squeezes a size of 1.
            return capture(module, args, kwargs, replace(facts, exact=True), numbers)
        if error.of_data and facts.usual and error.asks_plain and error.asks_plain not in facts.plain:
            return capture(module, args, kwargs, replace(facts, plain=facts.plain | {error.asks_plain}), numbers)
        if error.of_data and error.of_lists and not facts.lists:
            return capture(module, args, kwargs, replace(facts, lists=True), numbers)
        if error.of_data and (found := _with_known_buffers(module, call, facts, numbers)) is not None:
            return found
        if error.asks_compiling and not facts.as_eager:
            with contextlib.suppress(UnsupportedError):
                return capture(module, args, kwargs, replace(facts, as_eager=True), numbers)
        if not tells_of_free_sizes(error) or (dims := _dims(call)) <= facts.fixed:
            raise
        # Perhaps it holds for these sizes alone: a size of 1 is broadcast, one that may be 1 is not.
        return capture(module, args, kwargs, replace(facts, fixed=facts.fixed | dims, exact=True), numbers)
    if exported.read:
        return capture(module, args, kwargs, replace(facts, read=facts.read | exported.read), numbers)
    if exported.asks_for_ints and not (dims := _dims(call)) <= facts.fixed:
        return capture(module, args, kwargs, replace(facts, fixed=facts.fixed | dims, exact=True), numbers)
    try:
        imported = import_program(exported, facts, module)
    except NeedsConstants as need:
        if need.dims <= facts.fixed:
            raise UnsupportedError(str(need)) from None
        return capture(module, args, kwargs, replace(facts, fixed=facts.fixed | need.dims, exact=True), numbers)
    except UnsupportedError as error:
        if error.of_sizes_and_data and not facts.large:
            return capture(module, args, kwargs, replace(facts, large=True), numbers)
        if error.of_data and (found := _with_known_buffers(module, call, facts, numbers)) is not None:
            return found
        raise
    captured = Captured(exported, imported, facts)
    sizes = call.sizes()
    if captured.accepts(sizes):
        return captured
    return recapture(captured, module, args, kwargs, numbers)


def _with_known_buffers(module, call, facts, numbers):
    """Perhaps forward branches on numbers that it keeps in buffers, and on lengths, or makes sizes of them."""
    if facts.known_buffers or not kept_numbers(module):
        return None
    lengths = frozenset((index, dim) for index, size in enumerate(call.sizes()) for dim in range(1, len(size)))
    known = replace(facts, known_buffers=True, large=False)
    for each in (known, replace(known, exact=True, fixed=facts.fixed | lengths)):
        with contextlib.suppress(UnsupportedError):
            return capture(module, call.args, call.kwargs, each, numbers)
    return None


def _dims(call):
    return frozenset((index, dim) for index, size in enumerate(call.sizes()) for dim in range(len(size)))


def recapture(captured, module, args=(), kwargs=None, numbers=()):
    """A capture that fits a call which `captured` refuses, with what the broken guards teach."""
    call = Call(args, kwargs or {}, numbers=numbers)
    sizes = call.sizes()
    facts, broken = captured.facts, captured.imported.sizes.broken(sizes)
    ties = frozenset(frozenset(guard.tie) for guard in broken if guard.tie)
    moved = frozenset(guard.fixed for guard in broken if guard.fixed and guard.fixed not in facts.fixed)
    facts = replace(facts, untied=facts.untied | ties, moving=facts.moving | moved)
    if ties and len(ties) == len(broken):
        # The model never asked for these sizes to be equal: the same export, imported again.
        if first_other(captured.exported.questions, call.tensors, module) is not None:
            return capture(module, args, kwargs, facts, numbers)  # but it asked for something else
        again = import_again(replace(captured, facts=facts), module, call)
        if again.accepts(sizes):
            return again
    if facts == captured.facts and facts.exact and not _other_sizes(captured, sizes):
        reasons = "; ".join(guard.text for guard in captured.imported.sizes.broken(sizes))
        raise UnsupportedError(f"no capture fits sizes {sizes}: {reasons}")
    if asked := captured.exported.of_sizes - facts.plain - facts.needs_plain:
        with contextlib.suppress(Exception):  # PyTorch's own ones too: code that wants a plain number gets one below
            return capture(module, args, kwargs, replace(facts, plain=facts.plain | asked), numbers)
        facts = replace(facts, needs_plain=facts.needs_plain | asked)
    # The model's own code asked about sizes: with this call's, the answers are this call's.
    return capture(module, args, kwargs, replace(facts, exact=True), numbers)


def capture_with_numbers(module, call, constant=None, values=None, refusing=None, facts=None):
    """A capture in which the call's numbers are inputs, and its strings of any value. UnsupportedError where forward
    needs to know them.

    `constant`: if there is one, a capture for such calls in which some were constants of these `values`, {name: value};
    `refusing`: a capture with the same numbers that does not fit the call; `facts`: known before any of them, of a call
    without inputs for numbers.
    """
    names = call.names(module.forward)
    tensors = [index for index in range(len(names)) if index not in call.number_indices()]
    facts = (facts or Facts()).renumbered(tensors)
    if constant is not None:
        facts = constant.facts.renumbered([names.index(name) for name in constant.exported.names])
    if refusing is not None:
        captured = recapture(refusing, module, call.args, call.kwargs, call.numbers)
    else:
        captured = capture(module, call.args, call.kwargs, facts, call.numbers)
    if constant is not None and captured.facts == facts and _serves(constant, names, call.sizes()):
        if difference(constant.exported, captured.exported, values) is None:
            return captured
    if not call.number_indices() and not captured.exported.asks_for_classes:
        return captured  # nobody can have told these strings from others
    # Or with the values of this call, which may show less of an accident: 0 * x is 0.
    facts = captured.facts.renumbered({index: place for place, index in enumerate(tensors)})
    sets = tuple(write for write in captured.exported.writes if type(write) is Write and write.step is None)
    constant = capture(module, call.args, call.kwargs, replace(facts, sets=sets))
    if reason := difference(constant.exported, captured.exported, call.number_values(module.forward)):
        error = UnsupportedError(reason)
        error.read_strings = tuple(call.number_values(module.forward))
        raise error
    return captured


def _serves(captured, names, sizes):
    """Whether it is an export for tensors of these sizes, some of which it may hold as constants."""
    sizes = dict(zip(names, sizes, strict=True))
    return captured.exported.program is not None and captured.accepts([sizes[name] for name in captured.exported.names])


def import_again(captured, module, call):
    """The same export with the gradients that this call's tensors and the module's parameters ask for now."""
    if captured.exported.program is None:  # read from a file
        return capture(module, call.args, call.kwargs, captured.facts, call.numbers)
    flags = [tensor.requires_grad for tensor in call.tensors]
    imported = import_program(captured.exported, captured.facts, module, flags)
    return Captured(captured.exported, imported, captured.facts)


def import_divided(captured, module, call, division):
    """The same export as a graph that takes parts of parameters, as import_program has `division`; not to be run."""
    flags = [tensor.requires_grad for tensor in call.tensors]
    imported = import_program(captured.exported, captured.facts, module, flags, division)
    return Captured(captured.exported, imported, captured.facts)


def _other_sizes(captured, sizes):
    return [list(size) for size in sizes] != [list(size) for size in captured.exported.sizes]
