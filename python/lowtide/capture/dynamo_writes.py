"""Inputs with a gradient history that a graph of Dynamo's changes in place: torch.export takes inputs for leaves, which
may not be changed. The graph copies them first, changes and returns the copies, and its caller writes them back."""

from dataclasses import dataclass

import torch

from lowtide.guards.data import memory_of


@dataclass(frozen=True)
class Writes:
    places: tuple  # of the inputs
    returned: dict  # place of an output that is such an input itself → place of the input
    outputs: int  # of the graph, before those further ones

    @classmethod
    def of(cls, graph_module, examples):
        """`examples`: of the inputs, as Dynamo's trace has left them."""
        (output,) = graph_module.graph.find_nodes(op="output")
        results = [getattr(result, "meta", {}).get("example_value") for result in output.args[0]]
        places = tuple(place for place, example in enumerate(examples) if _is_written(example))
        returned = {}
        for index, result in enumerate(results):
            shared = [place for place in places if _share_memory(result, examples[place])]
            if any(_lies(result) != _lies(examples[place]) for place in shared):
                return cls((), {}, len(results))  # a view of the copy would be no view of the input
            returned.update((index, place) for place in shared)
        return cls(places, returned, len(results))

    def paths(self):
        """Of the further outputs, as keep_outputs has them."""
        return tuple(str(self.outputs + index) for index in range(len(self.places)))

    def are_seen(self, inputs):
        """Whether another input sees in its memory what is written."""
        tensors = [(place, tensor) for place, tensor in enumerate(inputs) if isinstance(tensor, torch.Tensor)]
        return any(
            place != written and _share_memory(tensor, inputs[written])
            for written in self.places
            for place, tensor in tensors
        )

    def apart(self, inputs):
        """For a call with gradients: the inputs, with tensors of their own in place of those that are written. A
        backward may read one, and one that runs forward again reads it with the history that it had."""
        if not torch.is_grad_enabled():
            return inputs
        return tuple(value.clone() if place in self.places else value for place, value in enumerate(inputs))

    def make(self, inputs, results):
        """The graph's own outputs."""
        for place, value in zip(self.places, results[self.outputs :], strict=True):
            inputs[place].copy_(value)
        own = results[: self.outputs]
        return tuple(
            inputs[self.returned[index]] if index in self.returned else own[index] for index in range(len(own))
        )


def _is_written(example):
    is_tensor = isinstance(example, torch.Tensor)
    return is_tensor and example._version > 0 and example.requires_grad and not example.is_leaf


def _lies(tensor):
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def _share_memory(one, other):
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return memory_of(one) == memory_of(other)
