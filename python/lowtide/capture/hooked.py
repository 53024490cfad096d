"""Hooks on tensors in Dynamo's graphs, whose code it has traced: calls of a Function, whose backward is the hook.

y = linear(x, w)                           y = linear(x, w)
register_hook(y, body, a)         ->        y' = Function.apply(y, a)      backward: body(gradient, a)
sin(y)                                     sin(y')
"""

import torch


def hooks_as_functions(graph_module, graph):
    """Rewrites `graph`, whose modules are those of `graph_module`; not where one of its hooks is on what is read before
    or changed in place, which no graph has."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    hooks = {}  # tensor → the nodes that register one on it
    for node in graph.nodes:
        if _registers(node):
            hooks.setdefault(_hooked(node.args[0]), []).append(node)
    for tensor, nodes in hooks.items():
        users = {user for each in (tensor, *nodes) for user in each.users}.difference(nodes)
        if any(order[user] < order[nodes[-1]] or _may_change(user) for user in users):
            return
    for tensor, nodes in hooks.items():
        users = {user for each in (tensor, *nodes) for user in each.users}.difference(nodes)
        last = tensor
        for node in reversed(nodes):  # the gradient comes to the first one first, from the far end
            _, body, *others = node.args
            with graph.inserting_before(nodes[-1]):
                last = graph.call_function(_function(getattr(graph_module, body.target)), (last, *others))
            last.meta = dict(tensor.meta)
        for each in (tensor, *nodes):
            each.replace_all_uses_with(last, lambda user, users=users: user in users)
        for node in reversed(nodes):
            graph.erase_node(node)


def _hooked(node):
    return _hooked(node.args[0]) if _registers(node) else node


def _registers(node):
    return isinstance(node.target, torch._ops.HigherOrderOperator) and node.target.name() == "register_hook"


def _may_change(node):
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or name in ("iadd", "isub", "imul", "itruediv", "setitem")


def _function(body):
    class Hooked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor, *others):
            ctx.save_for_backward(*(other for other in others if isinstance(other, torch.Tensor)))
            ctx.others = [None if isinstance(other, torch.Tensor) else other for other in others]
            return tensor.view_as(tensor)

        @staticmethod
        def backward(ctx, gradient):
            tensors = iter(ctx.saved_tensors)
            others = [next(tensors) if other is None else other for other in ctx.others]
            changed = body(gradient, *others)
            changed = changed[0] if isinstance(changed, tuple | list) else changed
            return (gradient if changed is None else changed, *(None,) * len(others))

    def apply(*args):
        return Hooked.apply(*args)

    return apply
