"""torch.export, with what it loses silently refused or kept, and its noise kept quiet."""

import bdb
import contextlib
import sys
import threading
import weakref
from dataclasses import dataclass, field

import torch
import torch.fx.experimental._config as symbolic_config
import torch.utils._pytree as pytree
from torch.export import Dim

from lowtide.distributed import Layouts, WholeParameters, is_distributed, is_divided
from lowtide.errors import InvalidArgument, UnsupportedData, UnsupportedError
from lowtide.guards import (
    Draws,
    Guards,
    Observation,
    in_graph,
    may_ask_for_classes,
    may_ask_for_numbers_classes,
    may_ask_for_tensors_classes,
    version_of,
)
from lowtide.guards.collected import places_of, places_of_grown, stale_places
from lowtide.guards.held import HELD
from lowtide.guards.readers import readers, running
from lowtide.guards.values import is_plain
from lowtide.log import logger

from . import trees
from .assigned_buffers import assigned_buffers, replaced_buffers
from .assignments import Assignments, asks_for_assignments
from .call import Call
from .call_tensors import CallTensors, mark_parameters
from .containers import Given, GivenContainers
from .examples import example, example_sizes, is_dynamic
from .facts import Facts
from .failures import clear_frames, failure_from, frames_of
from .functions import FunctionTable, functions_as_nodes, refuse_inlined
from .garbage import garbage_waits, young_garbage_at_end
from .grad_modes import grad_modes_between_autocasts, refuse_lost_gradients
from .hidden_views import spell_out
from .inner_gradients import write_out_gradients
from .inspections import Inspections, inspections_as_nodes
from .kept_outputs import keep_only
from .lost_leaves import of_lost_leaves
from .numbers import Item, as_tensor, depends_on, difference
from .one_at_a_time import exclusive
from .own_arguments import OwnArguments
from .packed import packed_sequences_padded
from .refusals import refuse_backward_hooks, refuse_state, saved_tensors_hooks_masked
from .regions_of_pytorch import regions_as_ops
from .repeated_samples import RepeatedSamples
from .silence import exporter_silenced
from .sparse import SparseTensors, is_sparse
from .sparse_arguments import put_together
from .stale_gradients import stale_gradients_aside
from .subclasses import exporters_subclasses_untold
from .tensor_attributes import TensorAttributes
from .transforms import undoing_transforms
from .view_or_copy import decide
from .vmap_regions import write_out_vmaps
from .whole_calls import WholeCalls

_exporter = None  # the thread that exports


def exports_elsewhere():
    """Whether another thread exports: what PyTorch says of tracing, it says of the whole process."""
    return _exporter is not None and _exporter != threading.get_ident()


@contextlib.contextmanager
def _this_thread_exports():
    global _exporter
    before, _exporter = _exporter, threading.get_ident()
    try:
        yield
    finally:
        _exporter = before


@dataclass
class Exported:
    program: torch.export.ExportedProgram
    names: list  # of the tensors
    sizes: list  # of the example
    functions: FunctionTable
    inspections: Inspections
    output_structure: trees.Structure
    output_leaves: list  # None in the place of a tensor, an Item in that of a number that the graph computes
    output_is_tensor: list
    guards: Guards
    numbers: frozenset = frozenset()  # indices of the tensors that are numbers to forward
    writes: tuple = ()  # Writes: of attributes; with any, the output is (the user's, [values]) of those without a step
    settings: tuple = ()  # what forward sets attributes to in each call, whatever it is given
    prints: tuple = ()  # texts
    draws: Draws = field(default_factory=Draws)  # what forward draws on the host
    conditions: tuple = ()  # (on sizes, the answer that forward got)
    groups: tuple = ()  # Processes, by the numbers that redistributions have
    asks_for_classes: bool = False  # with strings of any value: code may have told one from a str by type()
    questions: tuple = ()  # what forward asked of its tensors: Questions
    silent: frozenset = frozenset()  # what forward writes through `.data` alone: see _Flat._inputs
    attributes: dict = field(default_factory=dict)  # path of a constant → whether an attribute of the module held it
    lost: frozenset = frozenset()  # output tensors with gradients through leaves that forward makes
    read: frozenset = frozenset()  # arguments that forward reads elsewhere, where the trace did not know: as Facts.read
    asks_for_ints: bool = False  # forward may ask by type() whether a size is an int
    of_sizes: frozenset = frozenset()  # PlainNumbers': as Facts.plain, of what may have taken a size for a constant


class _Found:
    """What a trace tells besides its graph; an attribute of a module would be put back by the exporter."""

    leaves = is_tensor = structure = silent = filled = lost = None
    mistake = None  # InvalidArgument: a path that leads nowhere


class _Flat(torch.nn.Module):
    """The module as a function from a tuple of tensors to a tuple of tensors, which is all that the exporter sees."""

    def __init__(self, module, call, observation, facts, layouts, sizes):
        super().__init__()
        self.training = module.training
        self.module = module
        self.call, self.sizes = call, sizes
        self.keep, self.knows_buffers, self.sets = facts.keep, facts.known_buffers, facts.sets
        self.lists, self.bounded = facts.lists, facts.bounded
        self.call_tensors, self.names = CallTensors(module, call), call.tensor_words(module.forward)
        self.own_arguments = OwnArguments(module, call, facts.read)
        self.assignments = Assignments(facts.assigning, observation.is_running)
        self.sparse = SparseTensors(module, observation.is_running)
        self.layouts = layouts
        self.observation = observation
        self.found = _Found()

    def forward(self, tensors):
        mark_parameters(tensors, self.call.tensors)
        for size in (size for tensor in tensors if self.bounded for size in tensor.shape):
            torch._check(size <= _MOST)
        args, kwargs = self.call.with_tensors(self.own_arguments.stand_in(tensors, self.module))
        numbers = self.call.numbers_of(args, kwargs)
        self.observation.comparisons.begin(numbers, self.call.tensors, self.names)
        self.observation.hold(self.module, kwargs.pop(HELD, {}))
        if self.call.has_tables() or self.knows_buffers or self.lists:
            known = self.call_tensors.numbers(self.module) if self.knows_buffers else ()
            self.observation.take_tables((args, kwargs), known, self.lists)
        children = [
            (path, child, dict(child._parameters), dict(child._buffers)) for path, child in self.module.named_modules()
        ]
        self.observation.made(tensors)
        self.observation.behind_calls = RepeatedSamples(tensors, self.sizes, self.call.sizes()).check
        self.call_tensors.tell(self.observation.given, tensors, self.module)
        args, kwargs = put_together(args, kwargs, self.sparse.of_argument)
        containers = GivenContainers(args, kwargs)
        known = (*tensors, *self.module.parameters())
        given, attributes = [(tensor, tensor.requires_grad) for tensor in known], TensorAttributes(known)
        versions = [(place, tensor, version_of(tensor)) for place, tensor in self._inputs(tensors)]
        in_force = self.layouts.in_force() if self.layouts else contextlib.nullcontext()
        with grad_modes_between_autocasts(), in_force, self.sparse.in_forward():
            output = self.observation.call(self.module, *args, **kwargs)
        self.observation.comparisons.refuse_texts()
        is_silent = self.observation.past_autograd.is_all_of
        self.found.silent = frozenset(place for place, *since in versions if is_silent(*since))
        if (read := next((string for string in self.call.strings() if string.was_read), None)) is not None:
            read.refuse()  # forward has caught the error
        # One with a history now was written into, which is told later.
        if any(tensor.requires_grad != flag and tensor.grad_fn is None for tensor, flag in given):
            raise UnsupportedError("forward changes requires_grad of an argument or a parameter")
        assigned = []
        self.observation.seen.replaced = replaced_buffers([(child, buffers) for _, child, _, buffers in children])
        for path, child, parameters, buffers in children:
            _refuse_assigned_parameters(path, child, parameters)
            assigned += assigned_buffers(path, child, buffers)
        # Here and not later: the exporter puts attributes back itself.
        values = self.observation.take_writes(assigned, self.sets)
        self.observation.note_changes()
        if self.observation.tables and self.observation.changes is not None:
            raise self.observation.refusal()  # of a number from a table, perhaps: another table's graph has another
        output = self._kept(output)
        filled = containers.take_writes((self.call.args, self.call.kwargs))
        self.found.filled = tuple(write for write, _ in filled)
        values += [value for _, value in filled]
        has_writes = self.observation.writes or self.observation.puts or filled
        leaves, structure = trees.flatten_output((output, values) if has_writes else output, containers.is_changed)
        leaves = [containers.standing_for(leaf) if containers.is_changed(leaf) else leaf for leaf in leaves]
        leaves = self.observation.tables.in_graph(in_graph(leaves))
        self.assignments.refuse_outputs(leaves)
        attributes.refuse(leaves)
        self.observation.tables.refuse_writes()
        is_number = [isinstance(leaf, torch.SymFloat) or depends_on(leaf, numbers.values()) for leaf in leaves]
        for leaf, number in zip(leaves, is_number, strict=True):
            if number and isinstance(leaf, torch.SymInt):
                self.observation.comparisons.keep_within_64_bits(leaf)
        leaves = [as_tensor(leaf) if number else leaf for leaf, number in zip(leaves, is_number, strict=True)]
        for leaf in leaves:
            if is_divided(leaf):
                raise UnsupportedError("an output is a DTensor (use_local_output=False)")
            if is_sparse(leaf):
                raise UnsupportedData(f"an output is a tensor of layout {leaf.layout}")
            if not isinstance(leaf, torch.Tensor | torch.SymInt | torch.SymBool | Given) and not is_plain(leaf):
                raise UnsupportedData(f"an output holds {trees.how_to_register(type(leaf))}")
        self.found.leaves = [
            Item() if number else None if isinstance(leaf, torch.Tensor) else leaf
            for leaf, number in zip(leaves, is_number, strict=True)
        ]
        self.found.is_tensor = [isinstance(leaf, torch.Tensor) for leaf in leaves]
        self.found.structure = structure
        outputs = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        self.found.lost = of_lost_leaves(outputs, (tensor for _, tensor in self._inputs(tensors)))
        refuse_inlined(outputs)
        self.found.takes_gradient = [tensor.requires_grad for tensor in outputs]
        return outputs

    def let_go(self):
        """What the exporter leaves behind, which only the garbage collector frees, holds this and nothing of the
        user's."""
        del self.module, self.call, self.layouts, self.observation, self.call_tensors

    def _inputs(self, tensors):
        """(place, tensor): places of arguments are their indices, those of parameters and buffers their paths."""
        yield from enumerate(tensors)
        yield from self.module.named_parameters()
        yield from self.module.named_buffers()

    def _kept(self, output):
        if self.keep is None:
            return output
        try:
            return keep_only(output, self.keep)
        except InvalidArgument as mistake:
            self.found.mistake = mistake
            raise


def _refuse_assigned_parameters(path, module, before):
    """The exporter would put the old ones back."""
    now = module._parameters
    if names := [name for name in (*before, *now) if now.get(name) is not before.get(name)]:
        raise UnsupportedError(f"forward replaces the parameter '{f'{path}.{names[0]}'.lstrip('.')}'")


def export(module, call: Call, facts: Facts) -> Exported:
    """UnsupportedError with the reason and the user's line where PyTorch must run the module itself."""
    call.check(module.forward)
    call.name_strings(module.forward)
    refuse_backward_hooks(module)
    with exclusive, WholeParameters(module) as whole, young_garbage_at_end():
        refuse_state(module)
        for _ in range(_TRIES - 1):
            try:
                return _export_until_stable(module, call, facts, whole)
            except UnsupportedError as error:
                clear_frames(error)
                if _DISTURBED not in str(error):
                    raise
        return _export_until_stable(module, call, facts, whole)


def _guards(module, call, observation, whole):
    """Of the module as calls find it."""
    with whole.put_back():
        return Guards(module, observation.seen, call.tensors)


# PyTorch follows the calls of modules of all threads while it exports in one, and stumbles over the others'.
_MOST = 2**40  # of a size, where PyTorch needs a bound
_DISTURBED = "Unexpected key _export_root"
_TRIES = 5


_left = weakref.WeakKeyDictionary()  # module → (id of a dict, key) of what its graphs find as one call has left it


def _export_until_stable(module, call, facts, whole, growing=()):
    """Where forward changes something of Python's, a graph would do it once and never again. What it does once only (it
    sets a mode that was not set, it installs hooks) is done then: if the export after it is the same program. What it
    only counts is counted after each call. `growing`: texts of places of lists that it appends to."""
    observation = Observation(module, takes_as_usual=facts.usual, growing=growing)
    try:
        exported = _export(module, call, facts, observation, whole)
    except UnsupportedError as error:
        if texts := () if growing else places_of_grown(error.grown, error.guards):
            return _of_growing(module, call, facts, whole, texts, error)
        raise
    if observation.changes is None:
        return _without_looks(exported, stale_places(observation.puts), module, call, facts, whole, growing)
    observation.changes.make()
    again = Observation(module, takes_as_usual=facts.usual, growing=growing)
    again.settings.settled = observation.changes.keys()
    left = _left.setdefault(module, set())
    try:
        if left & {(id(table), key) for table, key in again.settings.settled}:
            raise observation.refusal()  # each graph would leave it to the other in turns
        stable = _export(module, call, facts, again, whole)
        if again.changes is None and difference(exported, stable, {}) is None:
            left |= again.settings.left
            return stable
        refusal = observation.refusal()
    except UnsupportedError as error:
        refusal = error
    observation.restore()
    if counters := observation.counters():
        counting = Observation(module, counters, facts.usual, growing=growing)
        with contextlib.suppress(UnsupportedError):
            counted = _export(module, call, facts, counting, whole)
            if counting.changes is None:
                return counted
    refusal.guards = _guards(module, call, observation, whole)
    refusal.numbers = observation.refusal().numbers
    if texts := () if growing else places_of_grown(observation.refusal().grown, refusal.guards):
        return _of_growing(module, call, facts, whole, texts, refusal)
    raise refusal


def _of_growing(module, call, facts, whole, texts, refusal):
    """The export in which the lists at these places grow; `refusal` if there is none."""
    try:
        return _export_until_stable(module, call, facts, whole, texts)
    except UnsupportedError as other:
        if other.numbers:  # which can be inputs
            raise other from None
    raise refusal


def _without_looks(exported, stale, module, call, facts, whole, growing):
    """The same export, of which tensors of the last call that forward replaces in containers may have any sizes, if it
    does not look at them."""
    if stale:
        observation = Observation(module, takes_as_usual=facts.usual, stale=stale, growing=growing)
        with contextlib.suppress(UnsupportedError):
            again = _export(module, call, facts, observation, whole)
            if observation.changes is None and difference(exported, again, {}) is None:
                return again
    return exported


def _export(module, call, facts, observation, whole):
    sizes = example_sizes(call, facts)
    # Fresh tensors: one object given for two arguments would make them one input; their values are never read.
    examples = tuple(example(tensor, size) for tensor, size in zip(call.tensors, sizes, strict=True))
    dims = tuple(
        {dim: Dim.AUTO if is_dynamic((index, dim), tensor, facts) else Dim.STATIC for dim in range(tensor.dim())}
        for index, tensor in enumerate(examples)
    )
    layouts = Layouts(whole.layouts) if is_distributed() else None
    flat = _Flat(module, call, observation, facts, layouts, sizes)
    handled, failures = sys.exc_info()[1], []
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(exclusive)
            stack.enter_context(_this_thread_exports())
            stack.enter_context(garbage_waits())
            stack.enter_context(exporter_silenced())
            stack.enter_context(saved_tensors_hooks_masked())
            # Sizes of 0 and 1 are not special until the model's own code asks: then that is a guard like any other.
            stack.enter_context(symbolic_config.patch(backed_size_oblivious=not facts.large))
            functions = stack.enter_context(functions_as_nodes(observation, layouts))
            inspections = stack.enter_context(inspections_as_nodes())
            whole_calls = stack.enter_context(WholeCalls())
            stack.enter_context(flat.sparse.aside())
            stack.enter_context(flat.sparse)
            stack.enter_context(exporters_subclasses_untold(module))
            stack.enter_context(stale_gradients_aside(module))
            stack.enter_context(observation.plain_numbers.standing_in(facts.plain))
            stack.enter_context(flat.assignments.as_ops())
            stack.enter_context(observation.compiling.answered(facts.as_eager))
            stack.enter_context(packed_sequences_padded(observation.is_running))
            stack.enter_context(observation)
            try:
                shapes = {"tensors": dims} if dims else None  # the exporter unpacks what there is none of
                program = undoing_transforms(_program_of, flat, examples, shapes)
            except bdb.BdbQuit:
                raise  # a user who debugs forward has had enough
            except Exception as error:
                if flat.found.mistake is not None:
                    failures.append(InvalidArgument(str(flat.found.mistake)))
                else:
                    failures.append(failure_from(error, handled))
                    failures[0].of_lists = observation.listed.are_read
                    failures[0].asks_compiling = observation.compiling.was_asked
                    failures[0].asks_plain = observation.plain_numbers.asked_by
                    failures[0].assigning = asks_for_assignments(error, frames_of(error))
                    failures[0].readers = observation.readers or readers(frames_of(error))
                    failures[0].running = failures[0].running or running(frames_of(error), module)
            if failures:
                raise failures.pop()  # as no variable of this frame, and without the exporter's frames behind it
        _forget(node.meta.get("val") for node in program.graph.nodes)
        write_out_gradients(program.graph_module)
        refuse_lost_gradients(program, flat.found.takes_gradient)
        sparse = flat.sparse.as_ops(program.graph_module)
        functions.regions = [*regions_as_ops(program.graph_module), *sparse]
        spell_out(program.graph_module)
        views_asked = decide(program.graph_module, call, flat.names, whole_calls.take_written())
        whole_calls.name_in(program.graph_module)
        observation.refuse_leftovers(_tensors_of(program.graph_module))
    except UnsupportedError as error:
        clear_frames(error)
        _forget(reference() for reference in observation.left())
        observation.restore()
        observation.let_go()
        error.guards = _guards(module, call, observation, whole)
        error.read_strings = tuple(string.name for string in call.strings() if string.was_read)
        raise
    except InvalidArgument:
        _forget(reference() for reference in observation.left())
        observation.restore()
        observation.let_go()
        raise
    finally:
        flat.sparse.let_go()
        flat.let_go()
    logger.info("the graph of %s from torch.export:\n%s", type(module).__name__, program)
    guards = _guards(module, call, observation, whole)
    if observation.caches.kept_for_objects:
        guards.refuse_storing("forward reads what a cached function keeps for objects")
    if functions.regions:
        guards.refuse_storing("forward calls torch.cond or one of its kind, or computes with sparse tensors")
    try:
        if may_ask_for_tensors_classes(observation.seen):
            raise UnsupportedError("forward asks by type() whether something is a tensor, which nothing in a trace is")
        places = places_of(observation.puts, guards)
        read = flat.own_arguments.check(guards, call.names(module.forward))
    except UnsupportedError as error:
        error.guards = guards
        raise
    return Exported(
        program,
        call.names(module.forward),
        sizes,
        functions,
        inspections,
        flat.found.structure,
        flat.found.leaves,
        flat.found.is_tensor,
        guards,
        call.number_indices(),
        (*observation.writes, *places, *flat.found.filled),
        observation.settings.again,
        tuple(observation.prints),
        observation.draws.untraced(),
        tuple(observation.conditions),
        () if layouts is None else tuple(layouts.groups),
        bool(call.strings()) and may_ask_for_classes(observation.seen),
        (*observation.given.questions(), *observation.comparisons.asked.values(), *views_asked),
        flat.found.silent,
        lost=flat.found.lost,
        read=read,
        of_sizes=frozenset(observation.plain_numbers.of_sizes),
        asks_for_ints=may_ask_for_numbers_classes(observation.seen),
    )


def _program_of(flat, examples, shapes):
    program = torch.export.export(flat, (examples,), strict=False, dynamic_shapes=shapes)
    write_out_vmaps(program.graph_module)
    program.example_inputs = None  # of a piece, what the pieces before it have computed
    return program


def _forget(values):
    """The exporter keeps weak references to all parameters, and torch.utils.swap_tensors (`module.to` too, where
    PyTorch is told so) refuses tensors that have any. And it keeps the fake inputs, for guards that we write
    ourselves: their sizes keep it, where no garbage collector looks. `values`: some of the trace."""
    for value in values:
        if mode := getattr(value, "fake_mode", None):
            mode.fake_tensor_converter.meta_converter.describer.lookup_tensor.clear()
            mode.shape_env.tracked_fakes = None
            return


def _tensors_of(graph_module):
    """The fake tensors that tell the types of a program's values."""
    graphs = [module.graph for module in graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    values = [node.meta.get("val") for graph in graphs for node in graph.nodes]
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
