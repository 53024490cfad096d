"""One step of the engine with all its values: as a captured graph trains, watched from outside."""

from dataclasses import dataclass

import torch

from lowtide._lowtide import Session, install_torch
from lowtide.capture import Call
from lowtide.ortmodule.custom_functions import CallHandler
from lowtide.ortmodule.options import memory_options, session_options
from lowtide.ortmodule.pure import pure_calls


@dataclass
class Example:
    """A module, one call of it, and its capture."""

    module: torch.nn.Module
    call: Call
    captured: object  # Captured

    def tensors(self):
        """Fresh ones in the order of the graph's inputs: a step may write into them."""
        return [self._tensor(source).detach().clone() for source in self.captured.sources]

    def _tensor(self, source):
        if source.kind == "input":
            return self.call.tensors[source.index]
        if source.kind == "constant":
            return source.tensor
        get = self.module.get_parameter if source.kind == "param" else self.module.get_buffer
        return get(source.paths[0])

    def size(self, text):
        return int(self.captured.imported.sizes.evaluate(text, self.call.sizes()))

    def symbols(self):
        sizes = self.call.sizes()
        return {name: sizes[index][at] for name, (index, at) in self.captured.imported.sizes.dims.items()}


@dataclass
class EngineStep:
    session: Session
    values: dict  # name in the training graph → tensor
    outputs: list
    gradients: dict  # name of an input → its gradient
    given: dict  # name of an input → tensor, as it was before


def make_session(example, memory=None, **options):
    """`memory`: keywords of Session; without, what the environment asks for. `options`: the same, in place of what the
    environment asks for."""
    install_torch()
    session = Session(
        example.captured.graph,
        training=True,
        observed=True,
        **{**session_options(), **options},
        **(memory_options().for_session() if memory is None else memory),
        pure_calls=pure_calls(),
    )
    session.set_call_handler(CallHandler(example.captured.functions))
    return session


def run_step(example, session, incoming, random_key=0):
    """Forward and backward. `incoming`: from the outputs to the gradient that each of `session.grad_outputs` gets."""
    values = {}
    tensors = example.tensors()
    session.observe(lambda name, tensor: values.__setitem__(name, tensor.clone()))
    found, pending = session.forward(tensors, random_key, True)
    outputs = [_output(each, tensors).clone() for each in found]
    gradients = incoming(outputs, session.grad_outputs)
    saved = [tensors[index] for index in session.saved_inputs]
    returned = session.backward(pending, gradients, saved)
    session.observe(None)
    names = session.input_names
    given = dict(zip(names, example.tensors(), strict=True))
    gradients = {
        names[target]: gradient.clone() for target, gradient in zip(session.gradient_targets, returned, strict=True)
    }
    return EngineStep(session, values, outputs, gradients, given)


def _output(found, tensors):
    if not isinstance(found, tuple):
        return found
    index, sizes, strides, offset, _ = found
    return tensors[index].as_strided(sizes, strides, offset)


def loss_alone(outputs, grad_outputs):
    """1 for the first output if that is a scalar, which is then the loss; else each output itself, as of half the sum
    of all squares."""
    first = outputs[grad_outputs[0]] if grad_outputs else None
    if first is not None and first.dim() == 0:
        return [torch.ones_like(first), *[None] * (len(grad_outputs) - 1)]
    return [outputs[index].clone() for index in grad_outputs]
