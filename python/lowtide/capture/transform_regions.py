"""torch.func's transforms (grad, jacrev, jvp, hessian …) in a graph of Dynamo's, which has the calls that make them up:
PyTorch runs these regions below its transforms, and what it records there takes their place.

    _grad_increment_nesting()                  →
    x' = _wrap_for_grad(x, level)
    y' = sin(x')                                   y = sin(x)
    g' = _autograd_grad(y', x')                    g = cos(x)
    g = _unwrap_for_grad(g', level)
    _grad_decrement_nesting()

The function that torch.func.vjp returns differentiates behind that: the region lasts until its last call.

Regions of vmap alone the exporter keeps, see vmap_regions.py.
"""

from dataclasses import dataclass

import torch
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx

from lowtide.errors import UnsupportedError

from .inner_gradients import without_detach, without_history
from .plain_calls import plain_calls, refuse_statistics

_BEGIN, _END = "_increment_nesting", "_decrement_nesting"
_AROUND = ("_saved_tensors_hooks_disable", "_saved_tensors_hooks_enable", "lazy_load_decompositions")  # regions


@dataclass
class _Region:
    nodes: list
    operands: list  # that come from before
    results: list  # that are read behind it


class Transformed(torch.fx.Interpreter):
    """Runs a graph of Dynamo's with such regions written out."""

    def __init__(self, graph_module):
        super().__init__(graph_module)
        self._regions = {region.nodes[0]: region for region in _regions(graph_module.graph)}
        self._inside = {node for region in self._regions.values() for node in region.nodes}
        self._found = {}

    def run_node(self, node):
        if (region := self._regions.get(node)) is not None:
            self._run(region)
        if node in self._inside:
            return self._found.pop(node, None)
        if self._regions and _name(node) in _AROUND:
            return None
        return super().run_node(node)

    def _run(self, region):
        operands = [self.env[operand] for operand in region.operands]
        written = _written(self.module, region, operands)
        self._found.update(zip(region.results, torch.fx.Interpreter(written).run(*operands), strict=True))
        for node in written.graph.nodes:  # a cycle, which would keep tensors of the trace
            node.meta.clear()


def _written(module, region, operands):
    """A graph module of plain calls."""

    def whole(*values):
        inner = torch.fx.Interpreter(module)
        inner.env.update(zip(region.operands, values, strict=True))
        for node in region.nodes:
            inner.env[node] = None if _name(node) in _AROUND[:2] else inner.run_node(node)
        return [inner.env[result] for result in region.results]

    with disable_proxy_modes_tracing(), torch._C.DisableTorchFunction():
        written = make_fx(whole, plain_calls(), "symbolic")(*map(without_history, operands))
    refuse_statistics(written.graph)
    without_detach(written.graph)
    written.recompile()
    return written


def _name(node):
    return getattr(node.target, "__name__", "") if node.op == "call_function" else ""


def _regions(graph):
    found, depth, nodes = [], 0, []
    pending = set()  # differentiation of what a region computes, behind its end: the functions of torch.func.vjp
    for node in graph.nodes:
        depth += _name(node).endswith(_BEGIN)
        if depth or pending:
            nodes.append(node)
            pending.update(user for user in node.users if _name(user) == "_autograd_grad")
            pending.discard(node)
        depth -= _name(node).endswith(_END)
        if nodes and not depth and not pending:
            if any(_differentiates(each) for each in nodes):
                found.append(_region(nodes))
            nodes = []
    return found


def _differentiates(node):
    name = _name(node)
    return name.endswith(_BEGIN) and not name.startswith("_vmap")


def _may_cut(node):
    name = node.target if node.op == "call_method" else _name(node)
    is_disabled = node.target is torch._C._set_grad_enabled and not node.args[0]
    return is_disabled or node.op == "call_module" or name in ("detach", "detach_", "data_of")


def _region(nodes):
    inside = set(nodes)
    if any(map(_may_cut, nodes)):
        raise UnsupportedError("forward cuts gradients inside of a transform of torch.func")
    operands = dict.fromkeys(operand for node in nodes for operand in node.all_input_nodes if operand not in inside)
    results = [node for node in nodes if any(user not in inside for user in node.users)]
    return _Region(nodes, list(operands), results)
