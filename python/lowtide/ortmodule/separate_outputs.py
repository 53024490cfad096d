"""Outputs that do not lead to one another, each with a backward of its own, of which none keeps the graph: the losses
of an actor and of a critic. To autograd they are of one function, whose saved tensors are gone with the first backward;
that of another one runs its part of the graph again, from the same inputs, in a session of its own."""

import torch

from lowtide.errors import EngineError

from .given_inputs import version_of


class LeftOutputs:
    """Those of one call that had no gradient in a backward, and the inputs as long as somebody holds these outputs."""

    def __init__(self, outputs, given, saved):
        """`given`: GivenInputs; `saved`: what autograd has saved."""
        self.outputs = frozenset(outputs)
        self._inputs = given.found(saved)
        self._versions = [None if tensor is None else version_of(tensor) for tensor in self._inputs]
        for place, version in zip(given.watched, given.versions, strict=True):
            if place not in given.memory.written:
                self._versions[place] = version

    def take_all_of(self, incoming, places):
        """Whether no other outputs have a gradient among those at these places."""
        return all(incoming[place] is None for place in places if place not in self.outputs)

    def gradients(self, agent, forward, incoming):
        """All gradients, by the agent's gradient_targets. `incoming`: of all outputs. As often as they are asked for:
        nobody tells here whether this backward keeps its graph."""
        if torch.is_grad_enabled():
            raise EngineError("a second backward under create_graph=True, of a graph that the first did not keep")
        outputs = tuple(index for index in sorted(self.outputs) if incoming[index] is not None)
        names = agent.session.input_names
        part = agent.ways.separate(outputs, [names[index] for index in agent.gradient_targets])
        given = dict(zip(names, self._inputs, strict=True))
        for index, name in enumerate(names):
            if name in part.input_names:
                self._check(index, name)
        with forward.random.again():
            found = part.gradients_by_name(given, [incoming[index] for index in outputs], forward.random.key)
        return [found.get(names[index]) for index in agent.gradient_targets]

    def _check(self, index, name):
        tensor = self._inputs[index]
        if tensor is None:
            raise EngineError(f"{_AGAIN} '{name}', which is gone: hold it until the last backward")
        if (now := version_of(tensor)) != self._versions[index]:
            raise EngineError(
                f"{_AGAIN} '{name}', which has been modified by an inplace operation: it is at version {now}, expected "
                f"{self._versions[index]}; call backward of all outputs before the optimizer's step"
            )


_AGAIN = "a second backward of one call runs a part of forward again. It depends on"
