"""One captured graph and its session: binds live tensors, runs halves of steps, rebuilds the module's outputs."""

import contextlib
import functools
import itertools
import threading
import time
from dataclasses import dataclass

import torch
from torch.autograd.graph import increment_version

from lowtide import environment
from lowtide._lowtide import HandOver, Session
from lowtide.capture import put_into
from lowtide.errors import Error, InternalError
from lowtide.guards import put_back, setters
from lowtide.log import logger
from lowtide.store import planned_session

from .budget import format_bytes
from .bug_reports import BugReports, Evidence
from .chain import run_chain
from .custom_functions import CallHandler
from .given_inputs import InputMemory
from .hooked_outputs import ways_of
from .input_density import DensityTable
from .options import MemoryOptions, memory_options, session_options
from .plan_check import PlanCheck
from .pure import pure_calls
from .regions import Regions
from .second_derivatives import SecondDerivatives

_NUMBERS = itertools.count()
_MOST_PATTERNS = 64  # of gradients that are absent
_OVER = (
    "memory_budget: more calls of the module wait for one backward than in the step before, which left no room for "
    "this one: this step goes over its budget by %s; from the next one on they share it"
)


class TrainingAgent:
    """A session with gradients, or without (`training=False`)."""

    def __init__(
        self,
        module,
        captured,
        training,
        bugs=None,
        budget=None,
        allowance=None,
        verify=False,
        second_derivatives=None,
        optimizer=None,
        labels=None,
        meeting=None,
    ):
        """In the autocast of the calls. `bugs`: BugReports of the module, if there are any; `budget`: a Budget;
        `allowance`: Allowance of the step, if there is one; `verify`: every plan is checked once (PlanCheck);
        `second_derivatives`: SecondDerivatives of the module, if there are any; `optimizer`: what was asked of the
        memory optimizer, as keywords of memory_options, where that is not the environment; `labels`: LabelSparsity of
        the call that the graph was made for; `meeting`: Meeting of the processes that train the module together, if
        there are any."""
        self.number = next(_NUMBERS)  # of no other
        self.captured, self.training = captured, training
        self.bugs = bugs or BugReports(type(module).__name__)
        self.memory = memory_options(budget, **(optimizer or {})) if training else MemoryOptions()
        self._allowance = allowance
        begin = time.perf_counter()
        self._options = {**session_options(), **self.memory.for_session(), "pure_calls": pure_calls()}
        self._options["training"] = training
        self.labels = labels
        if labels is not None and labels.is_wanted:
            self._options["label_sparsity"] = True
            self._options["padding_sparsity"] = labels.leaves_padding_out
        try:
            self.session = planned_session(module, captured, meeting if training else None, **self._options)
        except Error as error:
            error.evidence = Evidence.of("plan", captured, self._options)
            raise
        self.session_seconds = time.perf_counter() - begin
        forward = self.session.forward_text() if "label_sparsity" in self._options else ""
        self.leaves_rows_out, self.leaves_padding_out = (
            f'symbol="{name}' in forward for name in ("labelled", "attended")
        )
        self._densities = DensityTable(captured)
        self.backward_seconds = 0.0  # of all backwards so far
        self.export_seconds = None  # of the capture
        self.arguments = None  # a Call without tensors, like those that the graph serves
        self.failure = None  # of an earlier call, which PyTorch took over
        self._calls = CallHandler(captured.functions, captured.imported.groups)
        self.session.set_call_handler(self._calls)
        own = enumerate(captured.sources) if captured.functions else ()
        self._own = [index for index, source in own if source.kind == "param"]  # that functions may take
        self._lock = threading.RLock()  # a session takes one call at a time
        self._updated = self.session.updated_inputs
        self._changed = [index for index in self._updated if not captured.sources[index].silent]  # for autograd
        self._results = captured.imported.outputs
        self.inspections, self._random = captured.inspections, captured.imported.random
        self._draws = captured.exported.draws
        self._calls_out = self.session.report["python_nodes"] > 0
        self._prints = "".join(captured.exported.prints)
        exported = captured.exported
        sets = exported.writes or exported.settings
        self._write = setters(module, exported.writes, exported.settings) if sets else None
        self.inspects = bool(captured.inspections) or captured.inspections.steps > 0
        self.last_sizes = None
        self._check = PlanCheck(captured, self._options) if training and verify else None
        if training:
            self._saved = {}  # plan → (inputs, outputs) that its backward reads again
            self._regions = {}  # plan → Regions of its backward
            # One region hands out all gradients at once anyway; so does a step that is compared with another.
            self.hands_out_by_region = (
                environment.gradients_leave_by_bucket()
                and self._check is None
                and len(self.session.backward_regions(0)) > 1
            )
            self._inputs = InputMemory(captured, self.session)
            self._second_derivatives = second_derivatives or SecondDerivatives(module)
            self._autocast_dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
            self.grad_outputs = self.session.grad_outputs
            made = [entry for entry in captured.graph.outputs() if entry["kind"] == "output"]
            self.outputs_without_grad = sorted(set(range(len(made))) - set(self.grad_outputs))
            self.gradient_targets = self.session.gradient_targets
            self.ways = ways_of(self.session, self.grad_outputs, functools.partial(_session_of_part, self._calls))
            self.links = self.ways if self.ways and self.ways.sources else None  # from one output to another
            self._existing = {}  # (which outputs have a gradient, CallHandler.missing) → which gradients exist

    def bug_of_lowering(self):
        """The InternalError of calls that run on PyTorch's kernels because lowering them failed, or None."""
        if not (bugs := self.session.report["bugs"]):
            return None
        error = InternalError("; ".join(bugs))
        error.evidence = Evidence.of("plan", self.captured, self._options)
        return error

    # ---- a call

    def run(self, tensors, sizes, strings=(), arguments=None):
        """`tensors`: BoundInputs; `strings`: those of any value among the arguments; `arguments`: (args, kwargs)."""
        self.last_sizes = sizes
        self._densities.print(tensors)
        if self.training and self.gradient_targets:
            outputs, views = run_chain(self, tensors, sizes)
        else:
            outputs, views, _ = self.forward_step(tensors, keep=False)
        if self._prints:
            print(self._prints, end="")
        for index, view in views.items():
            # Not out of autograd's Function: views of inputs, which autograd shall see as views.
            outputs[index] = view.build(tensors)
            if self.training and index in self.outputs_without_grad:
                outputs[index] = outputs[index].detach()
        results = []
        for kind, index in self._results:
            if kind == "source":
                results.append(tensors[index])
            elif kind == "view":
                view = self.captured.imported.views[index]
                base = tensors[view.base] if view.of_input else outputs[view.base]
                results.append(view.build(base, self.captured.imported.sizes, sizes))
            else:
                results.append(outputs[index])
        for place in self.captured.exported.lost if self.training else ():
            if not results[place].requires_grad:
                results[place] = _OfLostLeaf.apply(torch.empty(0, requires_grad=True), results[place])
        if self._write is None:
            return self.captured.rebuild(results, sizes, strings)
        output, values = self.captured.rebuild_with_writes(results, sizes, strings, arguments)
        self._write(values)
        put_into(self.captured.exported.writes, values, *arguments)
        return output

    def forward_step(self, tensors, keep):
        """(outputs with None for views of inputs, {index of such an output: _View}, _Forward)."""
        with self._lock:
            if self._allowance is not None:
                self._allowance.apply(self)
            before = self._check.before(tensors, self._updated) if self._check and keep else None
            states = self._draws.states(self._random) if self._random or self._draws else ()
            if self._own:
                self._calls.parameters = {each.data_ptr(): each for each in tensors.take(self._own)}
            written = self._inputs.written if keep else ()
            as_it_was = [tensor.detach().clone() for tensor in tensors.take(written)] if written else []
            try:
                if self._draws:
                    self._draws.make()
                key = _random_key() if self._random else 0
                random = Randomness(key, torch.get_rng_state() if self._calls_out else None)
                hand_over = self._hand_over(tensors) if keep else HandOver.TOGETHER
                outputs, pending = self.session.forward(tensors, key, keep, hand_over)
                if over := self.session.over_budget_bytes:
                    logger.warning(_OVER, format_bytes(over))
            except BaseException as error:
                put_back(states)
                if isinstance(error, InternalError):
                    error.evidence = Evidence.of("forward", self.captured, self._options, self.last_sizes)
                raise
            step = self.inspections.forward_done(self.session.take_inspected()) if self.inspects else 0
            check = self._check.after(pending.plan, before, key, outputs) if before else None
        if self._changed:
            increment_version(tensors.take(self._changed))
        views = {}
        for index, output in enumerate(outputs):
            if type(output) is tuple:
                outputs[index], views[index] = None, _View(*output)
        return outputs, views, _Forward(pending, step, check, random, as_it_was)

    def _hand_over(self, tensors):
        """Of the gradients of this call's step."""
        if not self.hands_out_by_region:
            return HandOver.TOGETHER
        index = self.regions_of(0).parameter
        if index is None:
            return HandOver.BY_REGION
        (parameter,) = tensors.take([index])
        has_one = parameter.is_leaf and parameter.grad is not None
        return HandOver.BY_REGION_ONTO_OTHERS if has_one else HandOver.BY_REGION

    def regions_of(self, plan):
        """Regions of the backward of this plan of the session."""
        regions = self._regions.get(plan)
        if regions is None:
            regions = self._regions[plan] = Regions(self, plan)
        return regions

    def saved_by(self, plan):
        """(inputs, outputs) that backward reads again in this plan of the session, as their indices."""
        saved = self._saved.get(plan)
        if saved is None:
            saved = self._saved[plan] = self.session.saved_by(plan)
        return saved

    def remember(self, tensors, sizes, plan):
        """GivenInputs of a call that this plan served."""
        return self._inputs.remember(tensors, sizes, plan, self.saved_by(plan)[0])

    def forward_again(self, forward, inputs, sizes):
        """A _Forward like the one that has had its backward, from the same inputs."""
        with self._lock, forward.random.again():
            try:
                pending = self.session.run_forward(inputs, forward.random.key)
            except InternalError as error:
                error.evidence = Evidence.of("forward", self.captured, self._options, sizes)
                self.bugs.tell(error)
                raise
        return _Forward(pending, forward.step, None, forward.random)

    def differentiable_gradients(self, forward, inputs, gradients, sizes):
        return self._second_derivatives.gradients(self, inputs, gradients, forward.random, sizes)

    def autocast(self):
        """That of the calls."""
        dtype = self._autocast_dtype
        return torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None, cache_enabled=False)

    def backward(self, forward, gradients, saved_inputs):
        """All gradients, by gradient_targets."""
        pending, step, check = forward.take()

        def run():
            found = self.session.backward(pending, gradients, saved_inputs)
            if check is not None:
                self._check.compare(check, gradients, found)
            return found

        found, missing, inspected = self.run_backward(run)
        if self.inspects:
            self.inspections.backward_done(step, inspected)
        given = tuple(gradient is not None for gradient in gradients)
        if not missing and any(given):
            return found
        exist = self.gradients_that_exist(given, missing)
        return [gradient if exists else None for gradient, exists in zip(found, exist, strict=True)]

    def run_backward(self, run):
        """(what `run` returns, arguments of custom functions without a gradient, what was inspected)."""
        begin = time.perf_counter()
        if self._allowance is not None:
            self._allowance.backward_begins()
        with self._lock:
            self._calls.missing.clear()
            try:
                found = run()
            except InternalError as error:
                error.evidence = Evidence.of("backward", self.captured, self._options, self.last_sizes)
                self.bugs.tell(error)
                raise
            missing = frozenset(self._calls.missing) if self._calls.missing else None
            inspected = self.session.take_inspected() if self.inspects else ()
        self.backward_seconds += time.perf_counter() - begin
        return found, missing, inspected

    def gradients_that_exist(self, given, missing):
        """Where a function's backward gave None: what only that leads to is none either."""
        exist = self._existing.get((given, missing))
        if exist is None:
            if len(self._existing) >= _MOST_PATTERNS:
                self._existing.clear()
            exist = self._existing[given, missing] = self.session.existing_gradients(given, missing or ())
        return exist

    # ---- reports

    def symbol_values(self, sizes=None):
        """Of the session's symbols, in a call with these sizes, whatever its data; without: in the last call, with what
        its data bounded."""
        bounds = self.session.latest_bounds if sizes is None and self.last_sizes else []
        sizes = sizes or self.last_sizes or self.captured.exported.sizes
        places = [self.captured.imported.sizes.dims[name] for name in self.session.symbols]
        values = [sizes[index][position] for index, position in places]
        return values + bounds

    @property
    def in_two(self):
        """Whether the last forward keeps what its backward needs alone, as it was told."""
        return self.session.in_two is True

    def memory_report(self, sizes=None, in_two=None):
        """What Session.memory tells, and held_bytes: copies beside the plan, from forward to backward, of what forward
        writes and gradients depend on."""
        sizes_held = sizes or self.last_sizes or self.captured.exported.sizes
        held = self._inputs.held_bytes(sizes_held) if self.is_pending else 0
        return {**self.session.memory(self.symbol_values(sizes), in_two), "held_bytes": held}

    def step_need(self, values, in_two):
        """StepNeed of a forward with these `values` of the session's symbols."""
        return self.session.step_need(values, in_two, self.is_pending, self.number)

    @property
    def is_pending(self):
        """Whether its forwards have a backward."""
        return self.training and bool(self.gradient_targets)

    def collectives(self, sizes):
        """What processes do together in a call with these sizes, as text."""
        text = self.session.collectives(self.symbol_values(sizes))
        return text if self._check is None else f"{text}\nall of it again without recipes"

    def memory_stat(self, memory_optimization_config="", probe_config="", sizes=None, peaks=True):
        """What could be recomputed or compressed, as Session.memory_stat of src/report/insight.h tells it: rows, tables
        and JSON, for calls with these sizes. Without a configuration: with the session's own in force. `peaks`: with
        each row's planned peak, for which the step is planned once more."""
        return self.session.memory_stat(
            memory_optimization_config, probe_config, self.symbol_values(sizes), with_peaks=peaks
        )

    def get_serialized_ortmodule_memory_stat(
        self, memory_optimization_config="", probe_config="", return_opportunity_table=False
    ):
        """(the MemoryInsight Summary as text, or "" unless asked for, {"FastGelu+:1:-1": (bytes saved, as an expression
        of the dims "<input>_dim<i>", occurrences)}), as ORTModule's training agent returns it."""
        stat = self.memory_stat(memory_optimization_config, probe_config, peaks=return_opportunity_table)
        opportunities = {row["combination"]: (row["saving_symbolic"], row["frequency"]) for row in stat["rows"]}
        return stat["insight"] if return_opportunity_table else "", dict(sorted(opportunities.items()))

    def explain(self):
        """Ops that run on PyTorch; per step of the plan, the kernel taken and why faster ones refused."""
        report = self.session.report
        counts = f"{report['native_nodes']} native, {report['aten_nodes']} aten, {report['python_nodes']} python steps"
        calls = [f"on PyTorch: {name}" for name in report["fallbacks"]]
        return "\n".join([counts, *calls, self.session.explain()])

    def memory_stat_json(self, memory_optimization_config="", probe_config=""):
        """The same as JSON: rows, candidates with shapes, bytes, origins and reuse, the peak with and without."""
        return self.memory_stat(memory_optimization_config, probe_config)["json"]


def _session_of_part(calls, graph):
    session = Session(graph, **session_options(), pure_calls=pure_calls())
    session.set_call_handler(calls)
    return session


class _OfLostLeaf(torch.autograd.Function):
    """Of an output whose only gradients are of what forward makes itself: a backward that does nothing."""

    @staticmethod
    def forward(ctx, leaf, output):
        return output.detach()

    @staticmethod
    def backward(ctx, gradient):
        return None, None


class _View:
    """An output that lies in an input's memory: rebuilt on the caller's tensor, or on a copy where that lies otherwise
    than planned, which the engine has copied as well."""

    def __init__(self, index, sizes, strides, offset, input_strides):
        self.index, self.sizes, self.strides, self.offset = index, sizes, strides, offset
        self.input_strides = input_strides

    def build(self, tensors):
        base = _lying(tensors[self.index], self.input_strides)
        if self.offset == 0 and tuple(base.shape) == self.sizes and base.stride() == self.strides:
            return base.view_as(base)
        return base.as_strided(self.sizes, self.strides, base.storage_offset() + self.offset)


def _lying(tensor, strides):
    """The tensor, with these strides of a tensor without gaps."""
    places = zip(tensor.shape, tensor.stride(), strides, strict=True)
    if all(size <= 1 or found == planned for size, found, planned in places):
        return tensor
    order = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
    return tensor.permute(order).contiguous().permute([order.index(dim) for dim in range(tensor.dim())])


def _random_key():
    return int(torch.empty((), dtype=torch.int64).random_())


@dataclass(frozen=True, slots=True)
class Randomness:
    """Where the random numbers of a forward come from: the engine's from the key, those of calls out of it from
    PyTorch's generator in this state."""

    key: int
    state: torch.Tensor | None

    @contextlib.contextmanager
    def again(self):
        """PyTorch's generator draws what it drew then; where nothing but the engine did, what the key leads to."""
        before = torch.get_rng_state()
        if self.state is None:
            torch.default_generator.manual_seed(self.key)
        else:
            torch.set_rng_state(self.state)
        try:
            yield
        finally:
            torch.set_rng_state(before)


@dataclass(slots=True)
class _Forward:
    """One that has run: what is pending until its backward, the step of inspections, what is checked."""

    pending: object
    step: int
    check: object
    random: Randomness
    before: list = ()  # the tensors that forward has written and gradients depend on, as they were

    def take_before(self):
        before, self.before = self.before, ()
        return before

    def take(self):
        taken = self.pending, self.step, self.check
        self.pending = self.check = None
        return taken
