"""From calls to captured graphs: which captured graph fits a call, and when the module is captured again."""

import torch

from lowtide.capture import Call, capture, recapture
from lowtide.errors import UnsupportedError

from .module_watch import ModuleWatch

_MOST_CAPTURES = 16  # of one schema: a model whose every new size is another graph belongs to PyTorch

_MOST_SIZES = 4096  # remembered answers of guards


class GraphTransitionManager:
    """Keeps one list of agents (a captured graph and its session) for each schema of calls and state of the module."""

    def __init__(self, module, make_agent):
        self._module, self._make_agent = module, make_agent
        self._watch = self._watch_key = None
        self._specs = []
        self._agents = {}  # schema → agents, latest first
        self._refused = {}  # schema → reason
        self._by_sizes = {}  # (schema, sizes) → agent

    def agent_for(self, call: Call):
        """The agent for a call; UnsupportedError where the engine cannot run it."""
        if self._watch is None or not self._watch.unchanged():
            self._watch = ModuleWatch(self._module)
            self._watch_key = self._watch.key()
            self._by_sizes.clear()
        sizes = call.sizes()
        key = (self._spec_index(call.spec), call.schema(), _ambient())
        agent = self._by_sizes.get((key, sizes))
        if agent is None:
            agent = self._find((key, self._watch_key), call, sizes)
            if len(self._by_sizes) >= _MOST_SIZES:
                self._by_sizes.clear()
            self._by_sizes[key, sizes] = agent
        return agent

    def _find(self, key, call, sizes):
        if key in self._refused:
            raise UnsupportedError(self._refused[key])
        agents = self._agents.setdefault(key, [])
        for agent in agents:
            if agent.captured.accepts(sizes):
                return agent
        try:
            if len(agents) >= _MOST_CAPTURES:
                raise UnsupportedError(f"the model's graph depends on its sizes: {len(agents)} captures so far")
            args, kwargs = call.args, call.kwargs
            if agents:
                captured = recapture(agents[0].captured, self._module, args, kwargs)
            else:
                captured = capture(self._module, args, kwargs)
            agents.insert(0, self._make_agent(captured))
        except UnsupportedError as error:
            self._refused[key] = str(error)
            raise
        return agents[0]

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
    )
