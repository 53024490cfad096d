"""Backward under create_graph=True: PyTorch runs the module's forward again and differentiates that."""

import warnings

import torch

from lowtide.capture import keep_only, output_gradients, trees
from lowtide.errors import UnsupportedError
from lowtide.guards.held import HELD, InPlace
from lowtide.guards.writes import undone

from .fallback import users_frame
from .whole_submodule import as_it_is


class SecondDerivatives:
    """Of one module."""

    def __init__(self, module):
        self._module = module
        self._told = False

    def gradients(self, agent, inputs, incoming, random, sizes):
        """Of the agent's gradient targets, with a graph of their own. `inputs`: as they were in the call, with their
        history; `incoming`: by the agent's grad_outputs; `random`: its Randomness; `sizes`: of the call's tensors."""
        self._tell(agent)
        # An input's history may lead to other targets, also by this module: gradients end at a view of each target.
        inputs = list(inputs)
        for index in agent.gradient_targets:
            inputs[index] = inputs[index].view_as(inputs[index])
        targets = [inputs[index] for index in agent.gradient_targets]
        with random.again(), agent.autocast():
            outputs = self._outputs(agent, inputs)
        given = {
            index: gradient
            for index, gradient in zip(agent.grad_outputs, incoming, strict=True)
            if gradient is not None
        }
        pairs = output_gradients(agent.captured.imported, outputs, given, sizes)
        if not pairs:
            return [None] * len(targets)
        sources, flowing = zip(*pairs, strict=True)
        taking = [target for target in targets if target.requires_grad]
        found = iter(torch.autograd.grad(sources, taking, flowing, create_graph=True, allow_unused=True))
        gradients = [next(found) if target.requires_grad else None for target in targets]
        self._check_found(agent, gradients, incoming)
        return gradients

    def _outputs(self, agent, inputs):
        """The tensors that PyTorch's forward returns, which writes into copies."""
        captured, inputs = agent.captured, list(inputs)
        for index in agent.session.updated_inputs:
            source = captured.sources[index]
            if source.kind == "constant":
                raise UnsupportedError(
                    f"create_graph=True runs forward again, which writes into '{source.name}', expected a buffer"
                )
            inputs[index] = inputs[index].clone()
        tensors, state = {}, {}
        for source, tensor in zip(captured.sources, inputs, strict=True):
            if source.kind == "input":
                tensors[source.index] = tensor
            elif source.kind != "constant":
                state.update(dict.fromkeys(source.paths, tensor))
        args, kwargs = agent.arguments.with_tensors(tensors[index] for index in range(len(tensors)))
        in_place = InPlace(self._module, kwargs.pop(HELD, {}))
        with undone(self._module, captured.exported.writes), in_place, as_it_is(self._module):
            output = torch.func.functional_call(self._module, state, args, kwargs, tie_weights=False)
        if captured.facts.keep is not None:
            output = keep_only(output, captured.facts.keep)
        leaves, _ = trees.flatten_output(output)
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def _check_found(self, agent, gradients, incoming):
        """PyTorch's LSTM, for one, keeps its parameters in a list too, and reads those."""
        given = {place for place, gradient in enumerate(incoming) if gradient is not None}
        places = zip(agent.gradient_targets, agent.session.gradient_sources, gradients, strict=True)
        for index, sources, gradient in places:
            source = agent.captured.sources[index]
            if source.kind == "param" and gradient is None and not given.isdisjoint(sources):
                raise UnsupportedError(
                    f"create_graph=True runs forward again, and it reads parameter '{source.paths[0]}' elsewhere than "
                    "in the table of its module"
                )

    def _tell(self, agent):
        if self._told:
            return
        self._told = True
        is_random = agent.captured.imported.random or agent.captured.exported.draws
        random = " Its random numbers (dropout) are others than those of the loss." if is_random else ""
        warnings.warn(
            f"create_graph=True: PyTorch runs the forward of {type(self._module).__name__} again and differentiates "
            f"that, in PyTorch's time and memory: lowtide's own backward has no second derivative.{random}",
            UserWarning,
            stacklevel=users_frame(),
        )
