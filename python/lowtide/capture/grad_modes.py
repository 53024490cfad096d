"""Whether an exported program has the gradients that forward had while it was traced."""

import operator

import torch

from lowtide.errors import UnsupportedError


def refuse_lost_gradients(program, takes_gradient):
    """UnsupportedError where an output that took a gradient while forward was traced is computed without gradients in
    `program`: torch.export records calls of set_grad_enabled, and loses one where hooks of autograd make it.
    `takes_gradient`: per output of the user's."""
    outputs = program.graph.output_node().args[0][-len(takes_gradient) :] if takes_gradient else ()
    for node, wanted in zip(outputs, takes_gradient, strict=True):
        if wanted and _is_without_gradients(program.graph_module, node):
            raise UnsupportedError(
                "torch.export lost a change of grad mode: an output that takes a gradient is computed without one"
            )


def _is_without_gradients(owner, node):
    if node.target is not operator.getitem:
        return False
    region, index = node.args
    if region.target is not torch.ops.higher_order.wrap_with_set_grad_enabled or region.args[0]:
        return False
    body = getattr(owner, region.args[1].target)
    made = body.graph.output_node().args[0][index]
    # What the region is given, also where it writes into it, keeps its own gradient.
    schema = getattr(made.target, "_schema", None)
    return made.op == "call_function" and not (schema is not None and schema.is_mutable)
