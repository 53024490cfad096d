"""One graph of torch.compile's Dynamo in the engine."""

import time

import torch

from lowtide.capture import DynamoGraph

from .inference_manager import InferenceManager
from .training_manager import TrainingManager


class Piece:
    """What Dynamo calls in the place of a graph; captured and planned at its first call, when tensors are real."""

    def __init__(self, graph_module, debug_options, keep=None, budget=None, verify=False):
        """`keep`: paths into the graph's outputs, which are a tuple; the rest as ExecutionManager takes it."""
        self.graph = DynamoGraph(graph_module)
        facts = self.graph.facts
        self._training = TrainingManager(self.graph, debug_options, keep, budget, verify, facts)
        self._inference = InferenceManager(self.graph, debug_options, facts=facts)
        self.last_manager = self._training
        self.seconds = 0.0  # of the last call

    def __call__(self, *inputs):
        begin = time.perf_counter()
        self.last_manager = self._training if torch.is_grad_enabled() else self._inference
        result = self.last_manager.forward(self.graph.arguments(inputs), {})
        self.seconds = time.perf_counter() - begin
        return result

    @property
    def fallback_reason(self):
        return self.last_manager.fallback_reason
