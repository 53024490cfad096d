"""A captured graph evaluated in PyTorch, each value from known ones where there are such: from the engine's, every
value is what one op should have made of what the engine gave it, so that errors of earlier ops play no part."""

from collections import defaultdict

import torch


class LocalValues:
    """Values and gradients by name. Without `forward` and `backward` those of eager.

    Asked in the order of the graph (its reverse for gradients), so that recursion stays within one region."""

    def __init__(self, graph, inputs, incoming, forward=None, backward=None, floats=None):
        """`inputs`: tensors by name; `incoming`: gradients of outputs by name; `forward`, `backward`: what is known.
        `floats`: the dtype of all that are, in place of the graph's."""
        self._graph, self._inputs, self._incoming, self._floats = graph, inputs, incoming, floats
        self._forward, self._backward = forward or {}, backward or {}
        self._results, self._pulled = {}, {}  # by id of a call
        self._uses = defaultdict(list)
        for call in graph.calls:
            for place, name in enumerate(call.inputs):
                if name and call.takes_gradient and name in graph.needing:
                    self._uses[name].append((call, place))

    def value(self, name):
        """Known, or made."""
        if name in self._inputs:
            return self._cast(self._inputs[name])
        if name in self._forward:
            return self._cast(self._forward[name])
        return self.made(name)

    def made(self, name):
        """By its op, from values."""
        call = self._graph.maker[name]
        if id(call) not in self._results:
            self._results[id(call)] = self._try(self._graph.run, call, self._operands(call))
        return self._results[id(call)][name]

    def gradient(self, name):
        """Known, or summed; None where nothing flows."""
        if name in self._backward:
            return self._cast(self._backward[name])
        return self.summed(name)

    def summed(self, name):
        """Of all that flows into a value."""
        parts = [self._cast(self._incoming[name])] if name in self._incoming else []
        # As the engine does, the last reader first.
        parts += [self._pull(call)[place] for call, place in reversed(self._uses[name])]
        parts = [part for part in parts if part is not None]
        return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0] if parts else None

    def _pull(self, call):
        if id(call) not in self._pulled:
            gradients = {name: self.gradient(name) for name in call.outputs if name}
            self._pulled[id(call)] = self._try(self._graph.pull, call, self._operands(call), gradients)
        return self._pulled[id(call)]

    def _operands(self, call):
        return [None if name is None else self.value(name) for name in call.inputs]

    def _try(self, run, call, operands, *gradients):
        try:
            with torch.no_grad():
                return run(call, operands, *gradients, floats=self._floats)
        except (RuntimeError, TypeError):  # PyTorch's, where an op has no kernel of the wider dtype or refuses to mix
            if not self._floats:
                raise
        # Once more in the engine's own dtypes; what is wrong beside that is raised here.
        with torch.no_grad():
            narrow = [self._narrow(name, tensor) for name, tensor in zip(call.inputs, operands, strict=True)]
            gradients = [{key: self._narrow(key, tensor) for key, tensor in each.items()} for each in gradients]
            found = run(call, narrow, *gradients)
        if isinstance(found, dict):
            return {name: self._cast(tensor) for name, tensor in found.items()}
        return [None if tensor is None else self._cast(tensor) for tensor in found]

    def _narrow(self, name, tensor):
        return None if tensor is None else tensor.to(self._graph.dtypes[name])

    def _cast(self, tensor):
        return tensor.to(self._floats) if self._floats and tensor.is_floating_point() else tensor
