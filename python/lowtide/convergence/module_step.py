"""The module itself, without a graph: what its captured graph has to give."""

from contextlib import contextmanager

import torch

from lowtide.capture import output_gradients, trees

from .compare import LIMITS
from .distance import distance


def run_module(example, grad_outputs, sent):
    """({index: output of the graph that the module returns}, {parameter: gradient}) of one forward and backward in
    PyTorch. `sent`: the gradient of each of `grad_outputs`."""
    module, captured = example.module, example.captured
    args, kwargs = example.call.with_tensors([tensor.detach().clone() for tensor in example.call.tensors])
    with _buffers_kept(module), torch.enable_grad():
        leaves, _ = trees.flatten(module(*args, **kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        imported = captured.imported
        given = {index: gradient for index, gradient in zip(grad_outputs, sent, strict=True) if gradient is not None}
        flowing = output_gradients(imported, tensors, given, example.call.sizes())
        parameters = {
            source.name: module.get_parameter(source.paths[0])
            for source in captured.sources
            if source.kind == "param" and source.requires_grad
        }
        found = torch.autograd.grad(
            [output for output, _ in flowing],
            list(parameters.values()),
            [gradient for _, gradient in flowing],
            allow_unused=True,
        )
    gradients = {name: gradient for name, gradient in zip(parameters, found, strict=True) if gradient is not None}
    named = zip(imported.outputs, tensors, strict=False)
    return {index: tensor.detach() for (kind, index), tensor in named if kind == "graph"}, gradients


def capture_differs(example, grad_outputs, sent, eager, graph):
    """What the captured graph, run in PyTorch call by call (`eager`: its LocalValues), does not have from the module:
    words, or empty."""
    outputs, gradients = run_module(example, grad_outputs, sent)
    limit = max(LIMITS.get(str(dtype).removeprefix("torch."), 0.0) for dtype in graph.dtypes.values())
    for index, output in outputs.items():
        if not _close(eager.value(graph.outputs[index]), output, limit, 0.0):
            return f"output {index}"
    largest = max((gradient.abs().max().item() for gradient in gradients.values() if gradient.numel()), default=0.0)
    for name, gradient in gradients.items():
        found = eager.gradient(name)
        if not _close(torch.zeros_like(gradient) if found is None else found, gradient, limit, largest):
            return f"the gradient of {name}"
    return ""


def _close(found, expected, limit, largest):
    """The same ops in another order perhaps: what cancels is measured by the largest of all."""
    if expected.numel() == 0 or distance(found, expected) <= limit:
        return True
    return (found - expected).abs().max().item() <= limit * 0.1 * largest


@contextmanager
def _buffers_kept(module):
    kept = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)
