"""Regions of Dynamo's graphs that are graphs of their own and are called for what they compute alone: functions under
torch.utils.checkpoint, and torch.compiler.nested_compile_region's. What runs again is the plan's to choose, and what
is compiled once is not one kernel here.

    body = self.wrap_body_0                          h = linear(x, w)
    y = tag_activation_checkpoint(body, x, w)   ->   z = gelu(h)
    z = y[0]
"""

import operator

import torch
import torch.utils._pytree as pytree

_FIRST_OPERAND = {  # of the body, by the region's call
    torch.ops.higher_order.tag_activation_checkpoint: 1,
    torch.ops.higher_order.invoke_subgraph: 2,  # behind the body's name
}


def for_pytorch(graph_module):
    """A graph module that PyTorch's kernels train: the backward of a nested region needs a compiler."""
    is_nested = any(node.target is torch.ops.higher_order.invoke_subgraph for node in graph_module.graph.nodes)
    return with_bodies(graph_module) if is_nested else graph_module


def is_of_whole_numbers(graph_module):
    """Whether whole numbers and truth values are all that the graph computes, and all that it is given."""
    nodes = list(graph_module.graph.nodes)
    if any(node.op in ("call_module", "get_attr") for node in nodes):
        return False
    values = pytree.tree_leaves([node.meta.get("example_value") for node in nodes])
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return bool(tensors) and not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)


def with_bodies(graph_module):
    """The graph module itself if it has none of them, else one like it with the nodes of their bodies in their places,
    and of theirs."""
    if not any(node.target in _FIRST_OPERAND for node in graph_module.graph.nodes):
        return graph_module
    return _Copy(graph_module).module


class _Copy:
    def __init__(self, graph_module):
        self._graph, self._attributes = torch.fx.Graph(), {}  # name → object
        self._is_enabled = True  # gradients
        output, found = self._nodes(graph_module, {}, ())
        self._graph.output(found).meta = dict(output.meta)
        self.module = torch.fx.GraphModule(self._attributes, self._graph)
        self.module.train(graph_module.training)

    def _nodes(self, module, found, prefix):
        """(output node, its copied arguments). `found`: node of the module's → its copy, or a structure of copies."""
        for node in module.graph.nodes:
            if node.op == "output":
                return node, torch.fx.map_arg(node.args[0], found.__getitem__)
            if node in found:
                continue
            if node.op == "get_attr" and node.users and all(user.target in _FIRST_OPERAND for user in node.users):
                continue
            if node.target in _FIRST_OPERAND:
                found[node] = self._body(module, node, found, prefix)
            elif node.target is operator.getitem and isinstance(found[node.args[0]], tuple | list):
                found[node] = _with_example(found[node.args[0]][node.args[1]], node)
            else:
                found[node] = self._node(module, node, found, prefix)
        raise AssertionError("a graph without an output")

    def _body(self, module, node, found, prefix):
        body = getattr(module, node.args[0].target)
        operands = [torch.fx.map_arg(arg, found.__getitem__) for arg in node.args[_FIRST_OPERAND[node.target] :]]
        inner = dict(zip(body.graph.find_nodes(op="placeholder"), operands, strict=True))
        without = self._is_enabled and _gives_no_gradient(node)
        if without:
            self._graph.call_function(torch._C._set_grad_enabled, (False,))
        _, result = self._nodes(body, inner, (*prefix, node.args[0].target))
        if without:
            self._graph.call_function(torch._C._set_grad_enabled, (True,))
        return result

    def _node(self, module, node, found, prefix):
        copy = self._graph.node_copy(node, found.__getitem__)
        if node.op in ("get_attr", "call_module"):
            copy.target = "_".join((*prefix, node.target.replace(".", "_")))
            self._attributes[copy.target] = operator.attrgetter(node.target)(module)
        elif node.target is torch._C._set_grad_enabled:
            self._is_enabled = node.args[0]
        return copy


def _with_example(copy, node):
    """What a body computes, with what Dynamo knows of it outside."""
    if isinstance(copy, torch.fx.Node) and copy.op != "placeholder" and "example_value" in node.meta:
        copy.meta["example_value"] = node.meta["example_value"]
    return copy


def _gives_no_gradient(region):
    """A reentrant checkpoint gives its function's parameters gradients only if one of its arguments takes one. Dynamo
    passes it what the function reads beside its arguments too, parameters mostly."""
    is_checkpoint = region.target is torch.ops.higher_order.tag_activation_checkpoint
    if not is_checkpoint or region.kwargs.get("use_reentrant", True) is False:
        return False
    examples = [operand.meta.get("example_value") for operand in region.args[1:] if hasattr(operand, "meta")]
    given = [example for example in examples if not isinstance(example, torch.nn.Parameter)]
    return not any(getattr(example, "requires_grad", False) for example in given)
