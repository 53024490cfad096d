"""Calls out of the engine: ATen ops without a lowering and custom autograd Functions, on PyTorch with its autograd."""

import torch
import torch.utils._pytree as pytree
from torch.autograd.graph import get_gradient_edge

from lowtide.capture import DTYPES

_TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


class CallHandler:
    """What a session calls. Tensors are views of the engine's memory; results are copied to the given outputs.

    A context is (edges of the outputs, leaves): PyTorch's graph of one call, between views of the engine's memory. The
    plan keeps these bytes until the backward of the call.
    """

    def __init__(self, functions):
        self._functions = functions
        self._overloads = {}

    def forward(self, target, attrs, inputs, outputs, wants_context, needs_grad):
        call = self._aten(target, attrs) if "operands" in attrs else self._function(attrs)
        leaves = [None] * len(inputs)
        if wants_context:
            for index, tensor in enumerate(inputs):
                if tensor is not None and tensor.is_floating_point() and (index >= 32 or needs_grad >> index & 1):
                    leaves[index] = tensor.requires_grad_()
        with torch.set_grad_enabled(wants_context), torch.autocast("cpu", enabled=False):
            results = call(inputs)
        with torch.no_grad():
            for output, result in zip(outputs, results, strict=True):
                if output is not None:
                    output.copy_(result)
        if not wants_context:
            return None
        return [get_gradient_edge(result) if result.requires_grad else None for result in results], leaves

    def backward(self, context, gradients, outputs):
        edges, leaves = context
        flowing = [
            (edge, gradient)
            for edge, gradient in zip(edges, gradients, strict=True)
            if edge is not None and gradient is not None
        ]
        wanted = [(leaf, output) for leaf, output in zip(leaves, outputs, strict=True) if output is not None]
        known = [leaf for leaf, _ in wanted if leaf is not None]
        found = iter(())
        if flowing and known:
            sources, incoming = zip(*flowing, strict=True)
            found = iter(torch.autograd.grad(sources, known, incoming, allow_unused=True))
        for leaf, output in wanted:
            gradient = next(found, None) if leaf is not None else None
            if gradient is None:
                output.zero_()
            else:
                output.copy_(gradient)

    def _aten(self, target, attrs):
        overload = self._overloads.get(target)
        if overload is None:
            namespace, name = target.split("::")
            name, overload_name = name.split(".")
            overload = getattr(getattr(getattr(torch.ops, namespace), name), overload_name)
            self._overloads[target] = overload

        def call(tensors):
            args, kwargs = _arguments(overload._schema.arguments, attrs, tensors)
            return _tensors(overload(*args, **kwargs))

        return call

    def _function(self, attrs):
        record = self._functions[attrs["call"]]
        return lambda tensors: _tensors(record.function.apply(*record.with_tensors(tensors)))


def _tensors(result):
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _arguments(schema, attrs, tensors):
    """args and kwargs of an overload from operands (named one by one in `operands`) and attributes."""
    operands = {}
    for name, tensor in zip(attrs["operands"], tensors, strict=True):
        operands.setdefault(name, []).append(tensor)
    args, kwargs = [], {}
    for argument in schema:
        kind = str(argument.real_type)
        if argument.name in operands:
            found = operands[argument.name]
            value = found if "List" in kind else found[0]
        elif argument.name in attrs:
            value = _value(kind, attrs[argument.name])
        else:
            value = argument.default_value
        if argument.kwarg_only:
            if value is not None:
                kwargs[argument.name] = value
        else:
            args.append(value)
    return args, kwargs


def _value(kind, value):
    if "ScalarType" in kind:
        return _TORCH_DTYPES.get(value, value)
    if "MemoryFormat" in kind:
        return torch.channels_last
    if "List[bool]" in kind:
        return [bool(item) for item in value]
    return value
