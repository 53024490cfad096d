"""From calls to graphs: one state machine per mode. Whether a call needs an export, or a graph that was exported needs
other processing, and both of them; docs/transitions.md tells when."""

import itertools
import time
from dataclasses import replace

from lowtide.capture import Call, DynamoGraph, Facts, capture, capture_with_numbers, import_again, recapture
from lowtide.errors import InternalError, UnsupportedError
from lowtide.guards import Change, Guards, first_other
from lowtide.store import CaptureCache

from .bug_reports import bugs_are_internal_errors
from .fallback import Failure
from .held_numbers import HeldNumbers
from .post_export_processed_model_info import PostExportProcessedModelInfo
from .specialization import Specialization, surroundings_now
from .transitions import TransitionLog

_MOST_EXPORTS = 8  # of a mode, and …
_CALLS_AN_EXPORT = 1000  # … one more for each so many calls: an attribute may change each epoch, not each step
_MOST_SPECIALIZATIONS = 64  # remembered, those of calls that PyTorch runs too
_MOST_GUESSES = 4  # of strings that forward reads: exports that fail
_MOST_TRIES = 3  # to export, where forward itself changes what it reads: stable after a call or two
_MOST_PATTERNS = 4  # of wanted gradients: processed graphs of one export
_NEVER_BACK = ("submodule", "parameter", "buffer")  # changes that are not taken back
_MOST_UNUSUAL = 3  # calls more than others whose data the graph does not expect
_MOST_SIZES = 4096  # remembered answers of guards


class GraphTransitionManager:
    """The graphs of one mode: in training or not, with gradients or without."""

    def __init__(self, module, build_agent, mode, with_gradients, tells_savings, facts=None):
        """`build_agent`: from a captured graph, and a call that it is for, to its TrainingAgent; `mode`: in words;
        `tells_savings`: whether the log will tell of what a graph's memory plans save, in formulas that should hold for
        all sizes; `facts`: what is known of graphs before the first export."""
        self._module, self._build_agent = module, build_agent
        self.mode, self._with_gradients, self._tells_savings = mode, with_gradients, tells_savings
        self._facts = facts or Facts()
        self._schemas = []  # CallKind, latest first
        self._post_export_processed_model_info = None  # of the last call in the engine
        self._numbers = set()  # names of arguments that are inputs of some graph
        self._held = HeldNumbers()
        self._constant_numbers = {}  # names of arguments whose values forward needs to know → why
        self._read_strings = set()  # paths of strings that were guessed wrongly
        self._guesses = 0  # that were wrong
        self._calls, self._exports, self._unusual = 0, 0, 0
        self.log = TransitionLog(type(module).__name__, mode)
        self._cache = CaptureCache(module, mode)

    @property
    def transition_counts(self):
        """How often each transition of transitions.TRANSITIONS was taken."""
        return dict(self.log.counts)

    def forget_refusals(self):
        """The next call of a refused schema tries again."""
        for schema in self._schemas:
            schema.refusals.clear()

    def use_cache_or_reconstruct_post_processed_model(self, inputs, kwargs):
        """(whether a graph was exported or processed for it, PostExportProcessedModelInfo) for a call with these
        arguments; UnsupportedError where the engine cannot run it."""
        before = self.log.counts.total()
        info, _, _ = self.prepare(inputs, kwargs)
        return self.log.counts.total() > before, info

    def prepare(self, args, kwargs):
        """(PostExportProcessedModelInfo, ArgumentTensors, BoundInputs) for a call."""
        self._calls += 1
        surroundings = surroundings_now()
        graph = None
        while graph is None:
            given = self._held.given(kwargs, self._module)
            schema, seen = self._find_schema(args, given, surroundings)
            graph = self._re_export_check(schema, seen)
            if graph is None and not self._held.hold_changed(schema.graphs):
                graph = self._export(schema, schema.call(args, given, self._module), seen)
        info, bound = self._re_post_process_check(graph, seen)
        if info is None:
            info, bound = self._post_process(graph, schema.call(args, given, self._module), seen, schema)
        graph.guards.native.release()
        self._post_export_processed_model_info = info
        return info, seen, bound

    def ran(self, as_expected):
        """A call in the engine is over. `as_expected`: whether its data were as its graph takes for granted; where they
        rarely are, graphs take nothing for granted any more that forward has another way for."""
        self._unusual = max(0, self._unusual - 1) if as_expected else self._unusual + 1
        if self._unusual == _MOST_UNUSUAL and self._facts.usual:
            self._facts = replace(self._facts, usual=False)
            for schema in self._schemas:
                schema.graphs.clear()

    # ---- the schema of a call

    def _find_schema(self, args, kwargs, surroundings):
        for place, schema in enumerate(self._schemas):
            if schema.surroundings == surroundings and (seen := schema.arguments.match(args, kwargs)) is not None:
                if place:
                    self._schemas.insert(0, self._schemas.pop(place))
                return schema, seen
        call = Call(args, kwargs, self._module.forward)
        call.check(self._module.forward)
        schema = Specialization(call, self._module, surroundings)
        schema = self._refused_for_any_number(schema, args, kwargs) or self._with_numbers(schema, args, kwargs)
        same = (other for other in self._schemas if other.surroundings == surroundings and other.means_the_same(schema))
        if (twin := next(same, None)) is not None:
            schema.graphs, schema.refusals = twin.graphs, twin.refusals
            if twin.graphs:
                schema.guessed = {}
        if len(self._schemas) >= _MOST_SPECIALIZATIONS:
            without_graph = [old for old in self._schemas if not old.graphs]
            self._schemas.remove(without_graph[-1])
        self._schemas.insert(0, schema)
        return schema, schema.arguments.match(args, kwargs)

    def _refused_for_any_number(self, schema, args, kwargs):
        """The schema with any number in the places of those for which exports were refused again and again, for one
        reason; else None."""
        alike = [
            (other, found)
            for other in self._schemas
            if other.refusals
            and not other.graphs
            and (found := schema.with_numbers(other, (), args, kwargs, self._module)) is not None
        ]
        others = [other for other, _ in alike]
        if len(others) < _MOST_TRIES or any(not other.refused_as(others[0]) for other in others[:_MOST_TRIES]):
            return None
        _, found = alike[0]
        found.refusals, found.refused_alike = others[0].refusals, others
        return found

    def _with_numbers(self, schema, args, kwargs):
        """The schema with inputs in the places of numbers that change, or that changed in another schema."""
        for other in self._schemas:
            if other.graphs and (
                found := schema.with_numbers(other, self._constant_numbers, args, kwargs, self._module)
            ):
                return found
        known = self._numbers - self._constant_numbers.keys()
        schema = schema.with_held(self._held.new, known, args, kwargs, self._module)
        if isinstance(self._module, DynamoGraph) or self._guesses == _MOST_GUESSES:
            return schema
        return schema.with_guessed_strings(self._read_strings, args, kwargs, self._module)

    # ---- export

    def _re_export_check(self, schema, seen):
        """The schema's graph that fits, or None."""
        sizes = seen.sizes()
        for graph in schema.graphs:
            if not graph.accepts(sizes) or not graph.holds(seen.tensors) or self._other_answer(graph, seen):
                continue
            if not self._asked_for_other_gradients(graph, seen):
                return graph
        return None

    def _other_answer(self, graph, seen):
        """The first Question that forward asked and that this call answers in another way, or None."""
        questions = graph.captured.exported.questions
        return first_other(questions, seen.tensors, self._module) if questions else None

    def _asked_for_other_gradients(self, graph, seen):
        """Forward's own code asked for requires_grad, and would get another answer now."""
        return graph.who_asks is not None and self._re_post_process_check(graph, seen)[0] is None

    def _why_export(self, schema, seen):
        """The Change that leads to an export."""
        if not schema.graphs:
            if schema.reason is not None:
                return schema.reason
            known = next((other for other in self._schemas if other.graphs), None)
            return known.difference(schema) if known else Change("first call", f"the first call {self.mode}")
        graph = next((graph for graph in schema.graphs if graph.holds(seen.tensors)), None)
        if graph is None:
            other = next((graph for graph in schema.graphs if graph.guards.hold()), None)
            return other.why_other(seen.tensors) if other else schema.graphs[0].guards.why()
        if graph.accepts(seen.sizes()):
            if (other := self._other_answer(graph, seen)) is not None:
                return Change("question", other.change(seen.tensors, self._module))
            text = _other_gradients(graph.processed[0], seen)
            return Change("requires_grad asked", f"{text}, and {graph.who_asks}")
        return Change("sizes", f"sizes: {_broken(graph.captured, seen.sizes())}")

    def _export(self, schema, call, seen):
        """Captures the module for calls like this, and processes the graph. None where other numbers are inputs from
        now on: forward needs to know the value of one, or changes one itself."""
        numbers = call.number_indices()
        pattern = tuple(tensor.requires_grad for index, tensor in enumerate(call.tensors) if index not in numbers)
        refusal = schema.refusals.get(pattern)
        if schema.refused_alike:
            refusal = refusal or next(iter(schema.refusals.values()))
        if refusal is not None and refusal.holds(call.tensors):
            raise refusal.failure.error()
        if schema.refused_alike:  # the module is another one: each number is asked for again
            self._schemas = [other for other in self._schemas if other not in (schema, *schema.refused_alike)]
            return None
        change = self._why_export(schema, seen)
        allowed = _MOST_EXPORTS + self._calls // _CALLS_AN_EXPORT
        if self._exports >= allowed:
            self.log.take("limit", f"{allowed} exports {self.mode}; not for {change.text}")
            constants = [f"the value of `{name}` {why}" for name, why in self._constant_numbers.items()]
            told = [*constants, change.hint()] if change.hint() else constants
            told = "; ".join(told) or "ORTMODULE_LOG_LEVEL=INFO tells what each export was for"
            raise UnsupportedError(
                f"{allowed} graphs were exported {self.mode}, the most that its calls so far may have; calls that need "
                f"another run in PyTorch ({told})"
            )
        if not schema.guessed:
            self.log.take(change.trigger, change.text)
        self._exports += 1
        begin = time.perf_counter()
        try:
            with bugs_are_internal_errors():
                entry = self._cache_entry(call, schema)
                captured = entry and entry.find(call.sizes())
            graph = self._stored_graph(entry, captured, call, seen, schema, begin) if captured else None
            if graph is None:
                with bugs_are_internal_errors():
                    graph = _Graph(self._captured(change.trigger, call, schema))
                    if entry:
                        entry.store(graph.captured)
                self._process_first(graph, call, seen, schema, begin)
        except (UnsupportedError, InternalError) as error:
            if self._held.hold_written(error.numbers, self._module):
                self._exports -= 1
                self._schemas.remove(schema)
                return None
            if schema.guessed and (error.read_strings or "Unread" in str(error)):
                self._keep_read_strings(schema, error)
                return None
            if schema.all_numbers.keys() > schema.guessed_names() and not isinstance(error, InternalError):
                self._keep_constant(schema, str(error))
                return None
            self.log.take("refused", str(error))
            schema.refusals[pattern] = Refusal(self._module, error, refusal)
            raise
        if schema.guessed:
            self.log.take(change.trigger, change.text)
            schema.guessed = {}
        if self._held.new is not None:  # calls have another structure now
            self._schemas = [other for other in self._schemas if other.held.keys() >= schema.held.keys()]
            self._held.new = None
        if change.trigger in _NEVER_BACK:
            self._drop_stale_graphs()
        self._numbers |= schema.all_numbers.keys()
        schema.graphs.insert(0, graph)
        del schema.graphs[_MOST_EXPORTS:]
        return graph

    def _process_first(self, graph, call, seen, schema, begin):
        graph.guards.hold()
        graph.export_seconds = time.perf_counter() - begin
        self._post_process(graph, call, seen, schema)

    def _cache_entry(self, call, schema):
        if isinstance(self._module, DynamoGraph):
            return None  # Dynamo has traced it already, which is most of the time
        numbers = (tuple(sorted(call.numbers)),) if call.numbers else ()
        return self._cache.entry(
            call, (*schema.surroundings, *numbers, self._tells_savings(), self._facts.keep, self._facts.usual)
        )

    def _stored_graph(self, entry, captured, call, seen, schema, begin):
        """The processed graph of a capture that the cache gave; None where it cannot be processed."""
        graph = _Graph(captured)
        try:
            self._process_first(graph, call, seen, schema, begin)
        except UnsupportedError:  # as when it was exported
            raise
        except Exception as error:  # of what only a file says, which nobody exported
            entry.reject(error)
            return None
        return graph

    def _captured(self, trigger, call, schema):
        """A new capture for this call, with what the one that refuses its sizes has learnt."""
        known = _holding(schema, call.tensors) if trigger == "sizes" else None
        if call.numbers:
            constant = schema.constant
            if constant is None and schema.known is not None:
                constant = _holding(schema.known)
            return capture_with_numbers(self._module, call, constant, schema.values, known, self._facts)
        if known is not None:
            return recapture(known, self._module, call.args, call.kwargs)
        facts = replace(self._facts, free=self._tells_savings())
        if trigger == "draw":  # another way through the same code
            facts = schema.graphs[0].captured.facts
        return capture(self._module, call.args, call.kwargs, facts)

    def _keep_read_strings(self, schema, error):
        """The graph of a schema with guessed strings was refused: those that forward read are constants."""
        self._exports -= 1
        self._guesses += 1
        self._schemas.remove(schema)
        read = set(error.read_strings)
        groups = {path: names for path, names in schema.guessed.items() if read & set(names)} or schema.guessed
        self._read_strings.update(groups)
        self._constant_numbers.update(
            dict.fromkeys(itertools.chain(*groups.values()), f"is part of each graph: {error}")
        )

    def _keep_constant(self, schema, why):
        """The graph of a schema with numbers was refused: those that it was the first to have stay constants."""
        self._exports -= 1
        self._schemas.remove(schema)
        values = schema.values or schema.all_numbers
        names = list(values)
        for kind in (str, int):  # names of ways through forward, or sizes, likely
            found = [name for name, value in values.items() if type(value) is kind]
            if 0 < len(found) < len(values):
                names = found
                break
        self._held.keep_constant(schema.held[name] for name in names if name in schema.held)
        told = [schema.words[name] for name in names]
        self._constant_numbers.update(dict.fromkeys(names, f"is part of each graph: {why}"))
        self.log.take("constant", f"the value of {', '.join(told)} stays part of each graph: {why}")

    def _drop_stale_graphs(self):
        """They hold modules and tensors that the user has given up."""
        for schema in self._schemas:
            schema.graphs[:] = [graph for graph in schema.graphs if graph.guards.hold()]

    # ---- post-processing

    def _re_post_process_check(self, graph, seen):
        """(info, its live inputs) of the graph for the gradients that this call wants, or (None, None)."""
        for place, info in enumerate(graph.processed):
            as_wanted, bound = info.inputs.bind(seen)
            if as_wanted:
                if place:
                    graph.processed.insert(0, graph.processed.pop(place))
                return info, bound
        return None, None

    def _post_process(self, graph, call, seen, schema):
        """Builds and plans the graph for the gradients that this call wants: (info, its live inputs)."""
        captured = graph.captured
        with bugs_are_internal_errors():
            if graph.processed:
                self.log.take("requires_grad", _other_gradients(graph.processed[0], seen))
                captured = import_again(captured, self._module, call)
            agent = self._build_agent(captured, call)
            agent.export_seconds = graph.export_seconds
            agent.arguments = call.without_tensors()
            info = PostExportProcessedModelInfo(
                self._module, captured, agent, graph.guards, schema.arguments, self._with_gradients, call
            )
            if (change := graph.guards.why()) is not None:  # else they have read what the module's tensors are
                raise AssertionError(f"a graph whose guards do not hold as soon as it is there: {change.text}")
            as_wanted, bound = info.inputs.bind(seen)
            assert as_wanted, "a graph that was processed for other gradients than the call's"
        graph.processed.insert(0, info)
        del graph.processed[_MOST_PATTERNS:]
        return info, bound


def _other_gradients(info, seen):
    """In words, which tensor's requires_grad is another one than when the graph was processed."""
    _, bound = info.inputs.bind(seen)
    for source, now in zip(info.captured.sources, bound.requires_grad(), strict=True):
        if source.used and now != source.requires_grad:
            what = f"argument `{source.name}`" if source.kind == "input" else f"{source.kind} '{source.name}'"
            return f"{what} required {'no gradient, does now' if now else 'a gradient, does no longer'}"
    return "other tensors require a gradient"


class Refusal:
    """Why calls of a specialization are not exported, and as long as what that holds."""

    def __init__(self, module, error, before):
        """`before`: the Refusal of an earlier try, or None."""
        self.failure = Failure.of(error)
        self._guards = error.guards
        if self._guards is not None:
            self._guards.leave_out(error.changed)
        self._modes = Guards.of_modes(module, () if error.guards is None else error.guards.replaced)
        self._tries = 1
        if before is not None and before._modes.hold():
            # What has changed in the meantime does not matter to a reason that is the same as before.
            self._tries = _MOST_TRIES if before.failure == self.failure else before._tries + 1

    def holds(self, tensors):
        """For a call with these."""
        if not self._modes.hold():
            return False
        if self._guards is None or self._tries >= _MOST_TRIES:
            return True
        return self._guards.hold() and self._guards.take(tensors)


class _Graph:
    """One export and what was made of it."""

    def __init__(self, captured):
        self.captured, self.guards, self.draws = captured, captured.exported.guards, captured.exported.draws
        self.processed = []  # PostExportProcessedModelInfo, latest first
        self.export_seconds = None
        self.who_asks = _who_asks(captured)  # in words
        self._accepted = {}  # sizes → whether the graph is right for them

    def holds(self, tensors):
        """Of a call."""
        if not self.draws.hold(tensors) or not self.guards.hold():
            return False
        return tensors is None or self.guards.take(tensors)

    def why_other(self, tensors):
        """The Change to a call that it does not hold for, where the module is the same."""
        if not self.draws.hold(tensors):
            return Change("draw", self.draws.why(tensors))
        index = self.guards.native.find_other_argument(tensors)
        verb = "is no longer the" if index in self.guards.own_arguments else "is now a"
        return Change("argument", f"argument `{self.captured.exported.names[index]}` {verb} tensor of the module's own")

    def accepts(self, sizes):
        answer = self._accepted.get(sizes)
        if answer is None:
            if len(self._accepted) >= _MOST_SIZES:
                self._accepted.clear()
            answer = self._accepted[sizes] = self.captured.accepts(sizes)
        return answer


def _holding(schema, tensors=None):
    """The capture that is right for the module as it is, and for the random numbers that come next. `tensors`: of a
    call of the schema."""
    return next((graph.captured for graph in schema.graphs if graph.holds(tensors)), None)


def _who_asks(captured):
    """The code that may have asked for requires_grad while it was traced, or None."""
    if captured.exported.guards.asks_for_gradients:
        return "forward asks for requires_grad"
    if captured.functions:
        return f"{captured.functions[0].name} may ask for ctx.needs_input_grad"
    return None


def _broken(captured, sizes):
    guards = [guard.text for guard in captured.imported.sizes.broken(sizes)]
    shapes = ", ".join(f"{name} {list(size)}" for name, size in zip(captured.exported.names, sizes, strict=True))
    return f"{'; '.join(guards) or 'a guard'} does not hold for {shapes}"
