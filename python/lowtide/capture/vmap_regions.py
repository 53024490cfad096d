"""torch.vmap inside of forward: the exporter keeps calls as they are on one row; PyTorch's batching rules write them
out.

    vmap_increment_nesting(n)                  →
    a' = add_batch_dim(a, 0, level)
    c' = matmul(a', w)                             c = matmul(a, w)
    d' = sum(c', [0])                              d = sum(c, [1])
    d = remove_batch_dim(d', level, n, 0)
    vmap_decrement_nesting()

transformers' masks are nested regions, associative_scan is made of them (mamba).
"""

from dataclasses import dataclass, field

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lowtide.errors import UnsupportedError

_BEGIN, _END = "_vmap_increment_nesting", "_vmap_decrement_nesting"
_ENTER, _LEAVE = "_add_batch_dim", "_remove_batch_dim"
_ORIGIN = ("nn_module_stack", "stack_trace")
_PREPARE = "lazy_load_decompositions"


@dataclass
class _Region:
    """A call of torch.vmap. Its body is of nodes and of regions."""

    begin: torch.fx.Node
    entered: list = field(default_factory=list)
    body: list = field(default_factory=list)
    left: list = field(default_factory=list)
    nodes: list = field(default_factory=list)  # with those of the regions inside


def write_out_vmaps(graph_module):
    """Replaces the regions in the graph and in those of its submodules by calls on whole tensors.

    UnsupportedError where PyTorch has no rule, or where a region draws random numbers."""
    for module in list(graph_module.modules()):
        if isinstance(module, torch.fx.GraphModule) and (regions := _regions(module.graph)):
            for region in regions:
                _write_out(module, region)
            for node in [node for node in module.graph.nodes if _name(node) == _PREPARE]:
                module.graph.erase_node(node)
            module.recompile()


def _name(node):
    return getattr(node.target, "__name__", "") if node.op == "call_function" else ""


def _regions(graph):
    nodes = iter(list(graph.nodes))
    return [_region(node, nodes) for node in nodes if _name(node) == _BEGIN]


def _region(begin, nodes):
    """The region that begins with `begin`; `nodes` are those after it."""
    region = _Region(begin, nodes=[begin])
    for node in nodes:
        name = _name(node)
        if name == _BEGIN:
            inner = _region(node, nodes)
            region.body.append(inner)
            region.nodes += inner.nodes
            continue
        region.nodes.append(node)
        if name == _END:
            return region
        if name == _ENTER:
            region.entered.append(node)
        elif name == _LEAVE:
            region.left.append(node)
        elif name != _PREPARE:
            _refuse_unknown(node)
            region.body.append(node)
    raise UnsupportedError("forward ends inside of torch.vmap")


def _refuse_unknown(node):
    if isinstance(node.target, torch._ops.HigherOrderOperator) and node.target is not torch.ops.higher_order.flat_apply:
        raise UnsupportedError(f"forward calls {node.target} inside of torch.vmap")
    if isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags:
        raise UnsupportedError("forward draws random numbers inside of torch.vmap")


def _write_out(module, region):
    inside = set(region.nodes)
    used = dict.fromkeys(operand for node in region.nodes for operand in node.all_input_nodes)
    operands = [operand for operand in used if operand not in inside and operand.op != "get_attr"]
    constants = [operand for operand in used if operand.op == "get_attr"]
    if any(user not in inside for node in inside - set(region.left) for user in node.users):
        raise UnsupportedError("forward keeps a row of torch.vmap")

    def whole(*values):
        rows = torch.fx.Interpreter(module)
        rows.env.update(zip(operands, values, strict=True))
        rows.env.update((constant, rows.run_node(constant)) for constant in constants)
        _run(region, rows)
        return [rows.env[node] for node in region.left]

    values = [operand.meta["val"] for operand in operands]
    with torch.no_grad():
        traced = make_fx(whole)(*values)
    _splice(module.graph, region, operands, traced.graph)


def _run(region, interpreter):
    """Puts what leaves the region into the interpreter's environment."""
    env = interpreter.env

    def rows(*entered):
        env.update(zip(region.entered, entered, strict=True))
        for part in region.body:
            if isinstance(part, _Region):
                _run(part, interpreter)
            else:
                env[part] = interpreter.run_node(part)
        return tuple(env[node.args[0]] for node in region.left)

    in_dims = tuple(node.args[1] for node in region.entered)
    out_dims = tuple(node.args[3] for node in region.left)
    mapped = torch.vmap(rows, in_dims, out_dims, region.begin.args[1])
    env.update(zip(region.left, mapped(*(env[node.args[0]] for node in region.entered)), strict=True))


def _splice(graph, region, operands, written):
    """The calls of the graph `written` in the place of the region."""
    placeholders = [node for node in written.nodes if node.op == "placeholder"]
    copies = dict(zip(placeholders, operands, strict=True))
    origin = {key: region.begin.meta[key] for key in _ORIGIN if key in region.begin.meta}
    with graph.inserting_before(region.begin):
        for node in written.nodes:
            if node.op == "get_attr":
                raise UnsupportedError("torch.vmap needs a constant")
            if node.op == "call_function":
                copies[node] = copy = graph.node_copy(node, copies.__getitem__)
                copy.meta.update(origin)
    results = next(node for node in written.nodes if node.op == "output").args[0]
    for left, result in zip(region.left, results, strict=True):
        left.replace_all_uses_with(copies[result])
    for node in reversed(region.nodes):
        graph.erase_node(node)
