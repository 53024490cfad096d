"""Calls of ATen ops through the engine: traced without torch.export, several calls in one graph, beside PyTorch."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.utils._pytree as pytree
from torch.export.graph_signature import InputKind
from torch.fx.experimental.proxy_tensor import make_fx

from lowtide._lowtide import Session
from lowtide.capture import Facts
from lowtide.capture.export import Exported
from lowtide.capture.functions import FunctionTable
from lowtide.capture.importer import import_program
from lowtide.capture.inspections import Inspections
from lowtide.capture.op_schemas import target_name
from lowtide.capture.whole_calls import WholeCalls
from lowtide.ortmodule.custom_functions import CallHandler


class Invocation:
    """A function and its arguments, whose tensors become a graph's inputs."""

    def __init__(self, function, args, kwargs=None):
        self.function = function
        self.leaves, self.spec = pytree.tree_flatten((tuple(args), kwargs or {}))
        self.tensors = [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    def __call__(self, tensors):
        """The tensors among the outputs."""
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        outputs = pytree.tree_leaves(self.function(*args, **kwargs))
        return [output for output in outputs if isinstance(output, torch.Tensor)]

    def __repr__(self):
        shown = [
            f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}" if isinstance(leaf, torch.Tensor) else leaf
            for leaf in self.leaves
        ]
        args, kwargs = pytree.tree_unflatten(shown, self.spec)
        return ", ".join([*map(str, args), *(f"{name}={value}" for name, value in kwargs.items())])


@dataclass
class Mismatch:
    invocation: Invocation
    text: str


class TracingFailed(Exception):
    """PyTorch could not trace the calls."""


class SampleGraph:
    """A session over the outputs of all `invocations`."""

    def __init__(self, invocations):
        self._invocations = invocations
        self._tensors = [tensor for invocation in invocations for tensor in invocation.tensors]
        try:
            with WholeCalls() as whole_calls:
                traced = make_fx(self._flat, tracing_mode="fake", pre_dispatch=True)(*self._inputs())
        except Exception as error:
            raise TracingFailed(f"{type(error).__name__}: {error}") from error
        whole_calls.name_in(traced)
        self._constants = _constants_as_inputs(traced)
        placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
        for node, tensor in zip(placeholders, [*self._tensors, *self._constants], strict=True):
            node.meta["val"] = node.meta["val"].detach().requires_grad_(tensor.requires_grad)
        calls = [node.target for node in traced.graph.nodes if node.op == "call_function"]
        self.targets = {target_name(call) for call in calls if isinstance(call, torch._ops.OpOverload)}
        exported = Exported(
            program=SimpleNamespace(
                graph=traced.graph,
                graph_module=traced,
                graph_signature=SimpleNamespace(
                    input_specs=[SimpleNamespace(kind=InputKind.USER_INPUT)] * len(placeholders),
                    inputs_to_lifted_tensor_constants={},
                    user_inputs=(),  # views of inputs are the engine's here
                ),
            ),
            names=[f"x{index}" for index in range(len(placeholders))],
            sizes=[list(tensor.shape) for tensor in [*self._tensors, *self._constants]],
            functions=FunctionTable(),
            inspections=Inspections(),
            output_structure=None,
            output_leaves=[],
            output_is_tensor=[],
            guards=None,
        )
        self._imported = import_program(exported, Facts(), torch.nn.Module())
        self._session = Session(self._imported.graph)
        self._session.set_call_handler(CallHandler(FunctionTable()))
        # An entry reads "aten::histc.default (model, m.py:3)".
        self.fallbacks = {entry.split(" ")[0] for entry in self._session.report["fallbacks"]}
        self.is_random = self._imported.random

    @property
    def gradient_targets(self):
        return self._session.gradient_targets

    def _inputs(self):
        """Copies, since calls may write into them; strides with gaps stay as they are."""
        copies = [tensor.detach() for tensor in self._tensors]
        copies = [tensor.clone() if tensor.is_contiguous() else tensor for tensor in copies]
        return [copy.requires_grad_(tensor.requires_grad) for copy, tensor in zip(copies, self._tensors, strict=True)]

    def _given(self):
        """What a session takes."""
        return [*(tensor.detach() for tensor in self._inputs()), *self._constants]

    def _run(self, tensors):
        rest = iter(tensors)
        return [call([next(rest) for _ in call.tensors]) for call in self._invocations]

    def _flat(self, *tensors):
        return tuple(output for outputs in self._run(tensors) for output in outputs)

    def mismatches(self, rtol, atol, values=True):
        """What differs from PyTorch: outputs, and gradients for random gradients of the outputs. Without `values`
        (random draws) only dtypes and sizes are compared."""
        inputs, given = self._inputs(), self._given()
        expected = self._run(inputs)
        owners = [
            (call, place)
            for call, outputs in zip(self._invocations, expected, strict=True)
            for place in range(len(outputs))
        ]
        expected = [output for outputs in expected for output in outputs]
        results, pending = self._session.forward(given, 1, True)
        found = []
        arguments = [(call, place) for call in self._invocations for place in range(len(call.tensors))]
        for index in self._session.updated_inputs:
            if text := _difference(given[index], inputs[index].detach(), rtol, atol, values):
                call, place = arguments[index]
                found.append(Mismatch(call, f"tensor {place} is written: {text}"))
        for (call, place), output, (kind, index) in zip(owners, expected, self._imported.outputs, strict=True):
            if kind == "source":
                continue
            result = results[index]
            if isinstance(result, tuple):
                base, sizes, strides, offset, _ = result
                base = given[base]
                result = base.as_strided(sizes, strides, base.storage_offset() + offset)
            if text := _difference(result, output.detach(), rtol, atol, values):
                found.append(Mismatch(call, f"output {place}: {text}"))
        if values:
            incoming = self._backward_in_pytorch(expected, len(results))
            gradients = self._session.backward(
                pending,
                [incoming[index] for index in self._session.grad_outputs],
                [given[index] for index in self._session.saved_inputs],
            )
            found += self._gradient_mismatches(gradients, arguments, inputs, rtol, atol)
        return found

    def outputs(self):
        given = self._given()
        return self._session.forward(given, 1, False)[0]

    def results(self, incoming):
        """The outputs, and the gradients of the tensors that take one, for these gradients of the outputs."""
        given = self._given()
        outputs, pending = self._session.forward(given, 1, True)
        saved = [given[index] for index in self._session.saved_inputs]
        gradients = self._session.backward(pending, incoming, saved)
        in_order = sorted(zip(self._session.gradient_targets, gradients, strict=True), key=lambda pair: pair[0])
        return [*outputs, *(gradient for _, gradient in in_order)]

    def _backward_in_pytorch(self, expected, count):
        """Random gradients of the graph's outputs, after PyTorch's backward with them."""
        incoming, flowing = [None] * count, []
        for output, (kind, index) in zip(expected, self._imported.outputs, strict=True):
            if kind == "source" or not output.requires_grad:
                continue
            gradient = torch.randn_like(output)
            flowing.append((output, gradient))
            incoming[index] = gradient if incoming[index] is None else incoming[index] + gradient
        if flowing:
            torch.autograd.backward(*zip(*flowing, strict=True))
        return incoming

    def _gradient_mismatches(self, gradients, arguments, inputs, rtol, atol):
        targets = dict(zip(self._session.gradient_targets, gradients, strict=True))
        found = []
        for index, (call, place) in enumerate(arguments):
            if not inputs[index].requires_grad:
                continue
            # None means zero, on both sides.
            zeros = torch.zeros_like(inputs[index])
            wanted = inputs[index].grad if inputs[index].grad is not None else zeros
            if text := _difference(targets.get(index, zeros), wanted, rtol, atol, True):
                found.append(Mismatch(call, f"gradient of tensor {place}: {text}"))
        return found


def _constants_as_inputs(traced):
    """Tensors that a function makes of Python numbers: the graph's last inputs from now on."""
    constants = []
    after = next(node for node in traced.graph.nodes if node.op != "placeholder")
    for node in [node for node in traced.graph.nodes if node.op == "get_attr"]:
        constants.append(getattr(traced, node.target).detach())
        with traced.graph.inserting_before(after):
            placeholder = traced.graph.placeholder(f"constant_{len(constants)}")
        placeholder.meta["val"] = torch.empty_like(constants[-1], device="meta")
        node.replace_all_uses_with(placeholder)
        traced.graph.erase_node(node)
    return constants


def _difference(result, expected, rtol, atol, values):
    if result.dtype != expected.dtype or result.shape != expected.shape:
        return f"expected {expected.dtype}{list(expected.shape)}, found {result.dtype}{list(result.shape)}"
    if not values:
        return ""
    if not (expected.is_floating_point() or expected.is_complex()):
        rtol = atol = 0
    close = torch.isclose(result, expected, rtol=rtol, atol=atol, equal_nan=True)
    if close.all():
        return ""
    wide = torch.complex128 if expected.is_complex() else torch.float64
    worst = (result.to(wide) - expected.to(wide)).abs().nan_to_num(torch.inf).argmax()
    return (
        f"{int((~close).sum())} of {expected.numel()} entries differ, like {result.flatten()[worst].item()!r} "
        f"where PyTorch has {expected.flatten()[worst].item()!r}"
    )
