"""A captured graph without writes, call by call in PyTorch: forward values, and the gradient of each call.

Values go by the names that they have in the graph.
"""

from dataclasses import dataclass

import torch

from lowtide.guards.values import DTYPES
from lowtide.ortmodule.custom_functions import CallHandler

TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}
_FLOATS = ("f64", "f32", "bf16", "f16")


@dataclass(frozen=True)
class CapturedCall:
    """One node."""

    target: str  # "aten::gelu.default", or a custom function's name
    attrs: dict
    inputs: tuple  # names, None for an absent operand
    outputs: tuple
    origin: str  # "transformer.h.7.mlp.act  activations.py:41"
    takes_gradient: bool  # a gradient flows from some output to some input


class CapturedGraph:
    def __init__(self, graph, functions, evaluate):
        """`functions`: the capture's table of custom functions; `evaluate`: of a size's text."""
        self._handler = CallHandler(functions)
        name = [graph.value_name(value) for value in range(graph.value_count)]
        self.inputs = [name[entry["value"]] for entry in graph.inputs()]
        self.trainable = [name[entry["value"]] for entry in graph.inputs() if entry["requires_grad"]]
        outputs = graph.outputs()
        self.outputs = [name[entry["value"]] for entry in outputs if entry["kind"] == "output"]
        self.updates = {name[entry["target"]]: name[entry["value"]] for entry in outputs if entry["kind"] == "update"}
        self.dtypes = {each: TORCH_DTYPES.get(graph.value_type(value)[0]) for value, each in enumerate(name)}
        needing = set(self.trainable)
        self.calls = []
        for node in graph.nodes():
            if not node["outputs"]:
                continue  # an inspection
            inputs, results = (
                tuple(None if value is None else name[value] for value in node[side]) for side in ("inputs", "outputs")
            )
            takes = not needing.isdisjoint(inputs) and not node["target"].startswith("aten::detach.")
            takes = takes and any(each and self.dtypes[each].is_floating_point for each in results)
            if takes:
                needing.update(each for each in results if each)
            attrs = {key: _evaluated(value, evaluate) for key, value in node["attrs"].items()}
            target = node["target"]
            if target == "aten::view.default":  # of other strides, perhaps, than the model's own values
                target, attrs["shape"] = "aten::reshape.default", attrs.pop("size")
            self.calls.append(CapturedCall(target, attrs, inputs, results, node["origin"], takes))
        self.needing = needing
        self.maker = {each: call for call in self.calls for each in call.outputs if each}

    def run(self, call, operands, floats=None):
        """The results by name, in the dtypes of the graph, or with every float of the dtype `floats`."""
        attrs = dict(call.attrs)
        if floats:
            attrs.pop("autocast", None)
            attrs = {
                key: DTYPES[floats] if isinstance(value, str) and value in _FLOATS else value
                for key, value in attrs.items()
            }
        results = self._handler.run(call.target, attrs, operands)
        found = {}
        for name, result in zip(call.outputs, results, strict=True):
            if name is None:
                continue
            dtype = self.dtypes[name]
            if dtype.is_floating_point:
                result = result.to(floats or dtype)
            found[name] = result
        return found

    def pull(self, call, operands, gradients, floats=None):
        """Gradients of the operands, None for those that get none. `gradients`: by the names of outputs."""
        if not call.takes_gradient:
            return [None] * len(operands)
        leaves = [
            tensor.detach().requires_grad_() if name in self.needing and tensor.is_floating_point() else tensor
            for name, tensor in zip(call.inputs, operands, strict=True)
        ]
        with torch.enable_grad():
            results = self.run(call, leaves, floats)
        flowing = [
            (result, gradients[name])
            for name, result in results.items()
            if result.requires_grad and gradients.get(name) is not None
        ]
        taking = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        if not flowing or not taking:
            return [None] * len(operands)
        outputs, incoming = zip(*flowing, strict=True)
        found = iter(torch.autograd.grad(outputs, taking, incoming, allow_unused=True))
        return [next(found) if leaf is not None and leaf.requires_grad else None for leaf in leaves]


def _evaluated(typed, evaluate):
    kind, value = typed
    if kind == "int":
        return evaluate(value) if isinstance(value, str) else value
    if kind == "ints":
        return [evaluate(item) if isinstance(item, str) else item for item in value]
    return value
