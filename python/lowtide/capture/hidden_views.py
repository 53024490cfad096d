"""Calls that hand on their argument, or return a view of it, without saying so in their schemas (`x.type_as(x)`,
dropout in eval mode, `torch.einsum("ij->ji", x)`) or by names that the lowering does not follow (`x.mH`,
`x.hsplit(2)`). Where that memory is written, they are spelt out in calls that it follows.
"""

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from lowtide import _lowtide
from lowtide.errors import UnsupportedError

from .inner_gradients import without_history
from .op_schemas import is_call, written_by
from .view_or_copy import lies_in, memories

_FOLLOWED = frozenset(_lowtide.known_views())
_FRESH = frozenset(("lift", "lift_fresh", "lift_fresh_copy"))  # in each call: what literals become
_IN_PLAIN_WORDS = {torch.ops.aten._unsafe_view.default: torch.ops.aten.view.default}
_OF_ORIGIN = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn")
_ROUNDS = 2  # what a call is spelt out in may hide a view once more


def spell_out(graph_module):
    """In place. UnsupportedError where PyTorch has no other words for such a call."""
    graphs = [module.graph for module in graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    written = {lies_in(value) for graph in graphs for node in graph.nodes for value in written_by(node)} - {None}
    if not written:
        return
    for graph in graphs:
        for _ in range(_ROUNDS):
            for node in filter(lambda each: _hides(each, written), list(graph.nodes)):
                if node.target in _IN_PLAIN_WORDS:
                    node.target = _IN_PLAIN_WORDS[node.target]
                else:
                    _spell_out(node)
        if left := next((node for node in graph.nodes if _hides(node, written)), None):
            raise UnsupportedError(f"forward writes into memory that {left.target} shares with its argument")
        graph.lint()


def _hides(node, written):
    if not is_call(node) or node.target.namespace != "aten" or node.target._schema.is_mutable:
        return False
    name, results = node.target._opname, node.target._schema.returns
    if name in _FRESH or name in _FOLLOWED and any(result.alias_info is not None for result in results):
        return False
    return not written.isdisjoint(memories(node) & {lies_in(operand) for operand in node.all_input_nodes})


def _spell_out(node):
    graph = node.graph
    with graph.inserting_before(node):
        same = next((operand for operand in node.all_input_nodes if _is_same(node, operand)), None)
        if same is not None:
            results = graph.call_function(torch.ops.aten.alias.default, (same,))
            results.meta.update(node.meta)
        else:
            results = _in_other_words(node)
    if isinstance(results, torch.fx.Node):
        node.replace_all_uses_with(results)
    else:
        for user in list(node.users):  # operator.getitem of a list
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
    graph.erase_node(node)


def _is_same(node, operand):
    one, other = node.meta["val"], operand.meta.get("val")
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor) or lies_in(node) != lies_in(operand):
        return False
    if one.dtype != other.dtype or one.dim() != other.dim() or one.is_conj() != other.is_conj():
        return False
    pairs = zip((*one.shape, *one.stride()), (*other.shape, *other.stride()), strict=True)
    return statically_known_true(one.storage_offset() == other.storage_offset()) and all(
        statically_known_true(a == b) for a, b in pairs
    )


def _in_other_words(node):
    """What it returns, by calls of its own before it."""
    operands = node.all_input_nodes

    def call(*values):
        given = dict(zip(operands, values, strict=True))
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), given.__getitem__)
        return node.target(*args, **kwargs)

    with torch.no_grad():
        traced = make_fx(call)(*(without_history(operand.meta["val"]) for operand in operands))
    formal = traced.graph.find_nodes(op="placeholder")
    copies = dict(zip(formal, operands, strict=True))
    results = node.graph.graph_copy(traced.graph, copies)
    for copy in set(copies.values()).difference(operands):
        copy.meta.update({key: node.meta[key] for key in _OF_ORIGIN if key in node.meta})
    return results
