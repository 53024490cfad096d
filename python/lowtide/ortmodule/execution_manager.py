"""Runs a module's calls in the engine, or in PyTorch with a reason."""

import time
import warnings

from lowtide.capture import Call, exclusive
from lowtide.errors import FallbackWarning, GraphError, InternalError, UnsupportedError

from .announcement import announce
from .graph_transition_manager import GraphTransitionManager
from .options import fallback_disabled
from .save_onnx import save_stages
from .training_agent import TrainingAgent


class ExecutionManager:
    training = True

    def __init__(self, module, options):
        self._module, self._options = module, options
        self._transition = GraphTransitionManager(module, self._make_agent)
        self._warned = set()
        self._announced = False  # once, with the first graph
        self.last_agent = None
        self.fallback_reason = None
        self.last_call = 0.0  # when

    def _make_agent(self, captured):
        try:
            agent = TrainingAgent(self._module, captured, self.training)
        except (InternalError, GraphError) as error:
            # A bug of ours while planning; a user's training goes on.
            raise UnsupportedError(f"internal error: {error}") from error
        save_stages(agent, self._options.save_onnx_models)
        return agent

    def forward(self, args, kwargs):
        self.last_call = time.monotonic()
        try:
            call = Call(args, kwargs)
            with exclusive:
                agent = self._transition.agent_for(call)
                tensors = agent.bind(call)
            if self.training and not self._announced:
                self._announced = True
                announce(agent, call.sizes(), self._options)
            result = agent.run(tensors, call)
        except UnsupportedError as error:
            if fallback_disabled():
                raise
            reason = str(error)
        else:
            self.last_agent, self.fallback_reason = agent, None
            return result
        # First, whether PyTorch can: a mistake in the user's call is the user's to see.
        result = self._module(*args, **kwargs)
        self.fallback_reason = reason
        if reason not in self._warned:
            self._warned.add(reason)
            warnings.warn(
                f"{type(self._module).__name__} runs in PyTorch, not in lowtide: {reason}",
                FallbackWarning,
                stacklevel=2,
            )
        return result
