"""From calls to captured graphs: which captured graph fits a call, and when the module is captured again."""

import time

import torch

from lowtide.capture import Call, capture, recapture
from lowtide.errors import UnsupportedError
from lowtide.utils.hooks import GlobalSubscriberManager

from .fallback import Failure, bugs_become_refusals
from .module_watch import ModuleWatch

_MOST_CAPTURES = 16  # of one schema and state of the module: a model whose every new size is another graph is PyTorch's
_MOST_AGENTS = 32  # of one schema, the latest
_MOST_SIZES = 4096  # remembered answers of guards


class GraphTransitionManager:
    """Keeps agents (a captured graph, its session and its watch on the module) for each schema of calls."""

    def __init__(self, module, make_agent):
        self._module, self._make_agent = module, make_agent
        self._specs = []
        self._agents = {}  # schema → agents, latest first
        self._refused = {}  # schema → (failure, watch)
        self._by_sizes = {}  # (schema, sizes) → agent

    def agent_for(self, call: Call):
        """The agent for a call; UnsupportedError where the engine cannot run it."""
        sizes = call.sizes()
        key = (self._spec_index(call.spec), call.schema(), _ambient())
        agent = self._by_sizes.get((key, sizes))
        if agent is None or not agent.watch.unchanged():
            agent = self._find(key, call, sizes)
            if len(self._by_sizes) >= _MOST_SIZES:
                self._by_sizes.clear()
            self._by_sizes[key, sizes] = agent
        return agent

    def forget_refusals(self):
        """The next call of a refused schema tries again."""
        self._refused.clear()

    def _find(self, key, call, sizes):
        if key in self._refused:
            failure, watch = self._refused[key]
            if watch.unchanged():
                raise failure.error()
        agents = self._agents.setdefault(key, [])
        valid = [agent for agent in agents if agent.watch.unchanged()]
        for agent in valid:
            if agent.captured.accepts(sizes):
                return agent
        try:
            if len(valid) >= _MOST_CAPTURES:
                raise UnsupportedError(f"the model's graph depends on its sizes: {len(valid)} captures so far")
            begin = time.perf_counter()
            with bugs_become_refusals():
                if valid:
                    captured = recapture(valid[0].captured, self._module, call.args, call.kwargs)
                else:
                    captured = capture(self._module, call.args, call.kwargs)
                export_seconds = time.perf_counter() - begin
                agent = self._make_agent(captured)
            agent.export_seconds = export_seconds
        except UnsupportedError as error:
            modes = [(id(child), "training") for child in self._module.modules()]
            self._refused[key] = Failure.of(error), ModuleWatch(self._module, modes)
            raise
        agents.insert(0, agent)
        del agents[_MOST_AGENTS:]
        return agent

    def _spec_index(self, spec):
        """Pytree specs compare but do not hash."""
        for index, known in enumerate(self._specs):
            if known == spec:
                return index
        self._specs.append(spec)
        return len(self._specs) - 1


def _ambient():
    """What of PyTorch's state around the call changes a captured graph."""
    return (
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        GlobalSubscriberManager.capture_key(),
    )
