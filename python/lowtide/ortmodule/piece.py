"""One graph of torch.compile's Dynamo in the engine."""

import time

import torch

from lowtide.capture import DynamoGraph, for_pytorch

from .inference_manager import InferenceManager
from .pieces_step import Ran
from .training_manager import TrainingManager


class Piece:
    """What Dynamo calls in the place of a graph; captured and planned at its first call, when tensors are real."""

    def __init__(
        self, graph_module, debug_options, keep=None, budget=None, verify=False, allowance=None, optimizer=None
    ):
        """`keep`: paths into the graph's outputs, which are a tuple; the rest as ExecutionManager takes it."""
        self.graph, self._as_given = DynamoGraph(graph_module), for_pytorch(graph_module)
        facts = self.graph.facts
        keep = keep and keep + self.graph.writes.paths()
        self._training = TrainingManager(
            self.graph, debug_options, keep, budget, verify, facts, allowance=allowance, optimizer=optimizer
        )
        self._inference = InferenceManager(self.graph, debug_options, facts=facts)
        self.last_manager = self._training
        self._allowance = allowance
        self._seconds = 0.0  # of the last call
        self._refusal = None  # why PyTorch ran the last call, where no manager was asked

    def __call__(self, *inputs):
        results = self._results(inputs)
        return self.graph.counts.put(inputs, results) if self.graph.counts.outputs else results

    def _results(self, inputs):
        if self.graph.is_differentiated_within:
            return self._in_pytorch(inputs, "torch.autograd.grad may differentiate one of its outputs by another")
        if not self.graph.writes.places:
            return self._run(inputs)
        if self.graph.writes.are_seen(inputs):
            return self._in_pytorch(inputs, "an argument that is changed in place shares its memory with another one")
        self._refusal = None
        return self.graph.writes.make(inputs, self._run(self.graph.writes.apart(inputs)))

    def _in_pytorch(self, inputs, why):
        begin, self._refusal = time.perf_counter(), why
        results = self._as_given(*inputs)
        self._seconds = time.perf_counter() - begin
        if self._allowance is not None:
            self._allowance.ran_in_pytorch()
        return results

    def _run(self, inputs):
        begin = time.perf_counter()
        self.last_manager = self._training if torch.is_grad_enabled() else self._inference
        result = self.last_manager.forward(self.graph.arguments(inputs), {})
        self._seconds = time.perf_counter() - begin
        if self._allowance is not None and self.last_manager.fallback_reason is not None:
            self._allowance.ran_in_pytorch()
        return result

    def last_run(self):
        """Ran: the last call."""
        manager = self.last_manager
        if self.fallback_reason is not None:
            return Ran(None, None, self._seconds, self.fallback_reason)
        agent = manager.last_agent
        return Ran(agent, agent.last_sizes, self._seconds, None, agent.in_two)

    @property
    def fallback_reason(self):
        return self._refusal or self.last_manager.fallback_reason
