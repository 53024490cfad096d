"""Runs a module's calls in the engine, or in PyTorch with a reason."""

import contextlib
import time
import warnings
import weakref
from dataclasses import replace

from lowtide import environment, log
from lowtide.capture import DynamoGraph, Facts, exclusive, hooked_modules, keep_only
from lowtide.capture.sparse_arguments import taken_apart
from lowtide.distributed import Together, is_distributed
from lowtide.errors import Error, InternalError, UnplannedSize, UnsupportedData, UnsupportedError, UnsupportedModel
from lowtide.log import logger

from .announcement import announce, announce_pieces, announce_session, tells_savings
from .bug_reports import BugReports, bugs_are_internal_errors
from .fallback import Failure, Fallback, forget, reason_of
from .graph_transition_manager import GraphTransitionManager
from .input_density import LabelSparsity
from .resident import Resident
from .save_onnx import save_stages
from .second_derivatives import SecondDerivatives
from .step_budget import TotalBudget
from .surroundings import (
    SAVED_TENSORS_NOTICE,
    check_surroundings,
    refuse_draws_in_functions,
    saved_tensors_are_hooked,
)
from .training_agent import TrainingAgent
from .undone import ModuleState
from .whole_submodule import has_tables, tables_as_constants

_OF_GRAPHS = (UnsupportedError, UnsupportedData, InternalError)  # what Dynamo's graphs may not meet


class ExecutionManager:
    training = True

    def __init__(
        self,
        module,
        options,
        keep=None,
        budget=None,
        verify=False,
        facts=None,
        pieces=None,
        allowance=None,
        optimizer=None,
        is_piece=False,
        reads_tables=False,
    ):
        """Of training steps: `keep`: paths of the outputs that they return, or None for all (capture/kept_outputs.py);
        `budget`: a Budget for their bytes; `verify`: check the bits of each plan once; `facts`: what is known of the
        module's graphs before the first export; `pieces`: the module as Pieces, for when there is no graph of it;
        `allowance`: Allowance of the step that the module is a piece of;
        `optimizer`: as TrainingAgent has it; `is_piece`: whether the module is a submodule between pieces;
        `reads_tables`: whether its calls have tables of sizes, which graphs hold as constants."""
        self._module, self._options = module, options
        self._keep, self._facts, self._pieces = keep, facts or Facts(), pieces
        self._budget, self._verify, self._optimizer = budget, verify, optimizer
        self._allowance = allowance
        if budget is not None and budget.is_total and allowance is None:
            self._allowance = TotalBudget(budget, Resident(module))
        self._fallback = Fallback(options.log_level)
        self._bugs = BugReports(type(module).__name__)
        self._transitions = {}  # module.training → GraphTransitionManager
        self._tables_are_constants, self._is_submodule = reads_tables, is_piece
        self._is_piece = is_piece or isinstance(module, DynamoGraph)
        self._second_derivatives = SecondDerivatives(module) if self.training else None
        self._noticed = False  # that hooks on saved tensors see little
        self._pieces_announced = False
        self._announced = None  # the dims of images that the graph of the last feature table has learnt to be free
        # The Failure that keeps every call out of the engine.
        self._refused = self._fallback.refusal_of_backward() if self.training else None
        self.last_agent = None
        self.last_step = None  # StepOfPieces, where the last call ran in pieces
        self._together = None
        if not self._is_piece:
            self._together = Together(module, self.training, environment.partitioned_parameters_are_gathered)
        self.last_failure = None  # the class of the last
        self._reason = None  # why the last call was no graph in the engine
        self.last_call = 0.0  # when

    def refuse(self, error):
        """No call can run in the engine; raises the error where PyTorch may not take over."""
        self.expect_fallback(error)
        self._refused = Failure.of(error)

    def expect_fallback(self, error):
        """Raises the error where PyTorch may not take over; else each call decides for itself."""
        if not self._fallback.takes(error):
            raise error

    def configure(self, options, policy):
        """Other options, or another FallbackPolicy, from the next call on; None: as they are."""
        if options is not None:
            self._options = options
            if self._pieces is not None:
                self._pieces.configure(options)
        self._fallback.configure(options and options.log_level, policy)

    def forward(self, args, kwargs):
        self.last_call = time.monotonic()
        with log.at(self._options.log_level):
            try:
                given = tables_as_constants(args, kwargs) if self._tables_are_constants else taken_apart(args, kwargs)
                result, self.last_agent = self._in_engine(*given)
            except Error as error:
                if isinstance(error, InternalError):
                    self._bugs.tell(error)
                if not self._fallback.takes(error):
                    raise
                failure = error
            else:
                self._reason = self.last_step = None
                return result
            try:
                return self._after_failure(failure, args, kwargs)
            finally:
                forget(failure)

    def _after_failure(self, failure, args, kwargs):
        # First, whether PyTorch can: a mistake in the user's call is the user's to see.
        result = self._without_graph(failure, args, kwargs)
        if (keep := self._kept_now()) is not None:
            result = keep_only(result, keep)
        self._reason, self.last_failure = reason_of(failure), type(failure)
        if not self._is_submodule:  # of a piece, its module tells
            self._fallback.warn(self._module, failure, self.last_step and self.last_step.words())
        return result

    def _announce_pieces(self):
        """Once the engine's share of a step's time is known: at the second call after the last that compiled."""
        step = self.last_step
        if step is not None and not self._pieces_announced and step.share() is not None:
            self._pieces_announced = True
            announce_pieces(step, self._options)

    @property
    def fallback_reason(self):
        """Why the last call was no graph in the engine, and how it ran in pieces, if it did; else None."""
        pieces = self.last_step and self.last_step.words()
        return f"{pieces}; as one graph: {self._reason}" if pieces else self._reason

    def _without_graph(self, failure, args, kwargs):
        refusal = None
        is_of_graph = type(failure) in _OF_GRAPHS or type(failure) is UnsupportedModel and hooked_modules(self._module)
        if self._pieces is not None and is_of_graph:
            self._offer_submodules(failure, args, kwargs)
            before = ModuleState(self._module) if self._pieces.may_refuse else None
            try:
                with exclusive:  # while a thread exports, the module's parameters are fake ones
                    self._announce_pieces()
                    result, step = self._pieces(args, kwargs)
                    self.last_step = step if step.in_engine else None
                return result
            except UnsupportedError as error:
                refusal = str(error)
                if before is not None:
                    before.put_back()
        result = self._module(*args, **kwargs)
        self.last_step = None
        if refusal is not None:
            logger.info("%s has no pieces: %s", type(self._module).__name__, refusal)
            self._pieces.refuse(refusal)
        return result

    def _offer_submodules(self, failure, args, kwargs):
        """To the pieces: what was running where there was no graph, and where forward reads tables of sizes."""
        self._pieces.whole_submodules.have_no_graph(failure.running)
        if failure.readers and not is_distributed() and has_tables(args, kwargs):
            self._pieces.whole_submodules.offer(failure.readers)

    def _kept_now(self):
        """In evaluation, and without gradients, calls return everything: who asks for metrics then wants the logits."""
        return self._keep if self.training and self._module.training else None

    def plan(self, args, kwargs):
        """(TrainingAgent, sizes) for a call that is not run."""
        if self._refused is not None:
            raise self._refused.error()
        agreement = self._agreement_of_processes()
        shapes = contextlib.nullcontext() if agreement is None else agreement.whole_shapes()
        with log.at(self._options.log_level), shapes, exclusive, bugs_are_internal_errors():
            check_surroundings(self._module, args, kwargs)
            info, seen, _ = self._graph_transition_manager.prepare(args, kwargs)
        return info.agent, seen.sizes()

    @property
    def _graph_transition_manager(self):
        """Of the module's mode. Modes do not share graphs: eval() changes most of them."""
        training = self._module.training
        if training not in self._transitions:
            mode = f"in {'training' if training else 'evaluation'} mode{'' if self.training else ', without gradients'}"
            manager = weakref.proxy(self)  # which is freed with its last reference
            self._transitions[training] = GraphTransitionManager(
                self._module,
                lambda captured, call: manager._make_agent(captured, call),
                mode,
                with_gradients=self.training,
                tells_savings=lambda: training and tells_savings(manager._options.log_level),
                facts=replace(self._facts, keep=self._kept_now()),
            )
        return self._transitions[training]

    def transition_counts(self):
        """{mode: {transition: how often}}; see docs/transitions.md."""
        return {manager.mode: manager.transition_counts for manager in self._transitions.values()}

    def _run(self, agent, tensors, seen, arguments):
        try:
            result = agent.run(tensors, seen.sizes(), seen.strings, arguments)
        except UnplannedSize:
            self._graph_transition_manager.ran(as_expected=False)
            raise  # the next call's data may be others
        except Error as error:
            # Nothing has been written yet; what PyTorch takes over stays PyTorch's.
            agent.failure = Failure.of(error) if self._fallback.takes(error) else None
            raise
        self._graph_transition_manager.ran(as_expected=True)
        return result

    def _agreement_of_processes(self):
        """None where each calls the module as it likes."""
        agreement = self._together and self._together.agreement()
        if agreement is not None and agreement.gathers:
            self._pieces = None  # Dynamo would look into the hooks that gather parameters
        return agreement

    def _in_engine(self, args, kwargs):
        def together():
            prepared = self._prepared(args, kwargs)
            return prepared, prepared[0].agent.collectives(prepared[1].sizes())

        def run(info, seen, tensors):
            return self._run(info.agent, tensors, seen, (args, kwargs)), info.agent

        agreement = self._agreement_of_processes()
        if agreement is None:
            return run(*self._prepared(args, kwargs))
        with agreement.reached(together) as prepared:
            return run(*prepared)

    def _prepared(self, args, kwargs):
        """(PostExportProcessedModelInfo, ArgumentTensors, BoundInputs)."""
        if self._refused is not None:
            raise self._refused.error()
        transition = self._graph_transition_manager
        with exclusive, bugs_are_internal_errors():
            check_surroundings(self._module, args, kwargs)
            if self._fallback.retry:
                transition.forget_refusals()
            info, seen, tensors = transition.prepare(args, kwargs)
            if info.inputs.overlaps(tensors):
                raise UnsupportedError("forward writes into a tensor that it also takes under another name")
        agent = info.agent
        if agent.failure is not None and not self._fallback.retry:
            raise agent.failure.error()
        if self._is_piece and info.captured.imported.random:
            refuse_draws_in_functions()
        moving = info.captured.facts.moving
        # A feature table for each piece would be many.
        if not self._is_piece and (self._announced is None or not moving <= self._announced):
            # Savings of a graph whose heights and widths are numbers would be wrong at others.
            self._announced = moving
            announce(agent, seen.sizes(), self._options)
        if self.training and not self._noticed and saved_tensors_are_hooked():
            self._noticed = True
            warnings.warn(SAVED_TENSORS_NOTICE, UserWarning, stacklevel=6)
        return info, seen, tensors

    def _make_agent(self, captured, call):
        if captured.functions and not environment.custom_functions_run():
            name = captured.functions[0].name
            raise UnsupportedError(f"the model calls {name}, and ORTMODULE_ENABLE_CUSTOM_AUTOGRAD is off")
        agent = TrainingAgent(
            self._module,
            captured,
            self.training,
            self._bugs,
            self._budget,
            self._allowance,
            self._verify,
            self._second_derivatives,
            self._optimizer,
            LabelSparsity(captured, call) if self.training else None,
            self._together and self._together.meeting,
        )
        if (bug := agent.bug_of_lowering()) is not None:
            if not self._fallback.takes(bug):
                raise bug
            self._bugs.tell(bug)
        save_stages(agent, self._module.training, self._options.save_onnx_models)
        announce_session(agent, self._options.log_level)
        return agent
