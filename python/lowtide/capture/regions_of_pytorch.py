"""torch.cond, while_loop, map and scan: PyTorch runs what they call, as plain Python would. Each is one node, whose op
is made for it."""

import itertools
from dataclasses import dataclass

import torch
import torch.utils._pytree as pytree

_numbers = itertools.count()


def _cond(predicate, true, false, operands):
    return (true if predicate else false)(*operands)


def _while_loop(condition, body, carried, others):
    while condition(*carried, *others):
        carried = body(*carried, *others)
    return carried


def _map(function, rows, others):
    results = [function(*row, *others) for row in zip(*rows, strict=True)]
    return [torch.stack(each) for each in zip(*results, strict=True)]


def _scan(combine, carried, rows, others):
    results = []
    for row in zip(*rows, strict=True):
        found = combine(*carried, *row, *others)
        carried = found[: len(carried)]
        results.append(found[len(carried) :])
    return [*carried, *map(torch.stack, zip(*results, strict=True))]


_RUNS = {"cond": _cond, "while_loop": _while_loop, "map_impl": _map, "scan": _scan}


def regions_as_ops(graph_module):
    """Makes such regions ops. What has to live as long as the graph."""
    libraries = []
    for module in [each for each in graph_module.modules() if isinstance(each, torch.fx.GraphModule)]:
        for node in list(module.graph.nodes):
            if isinstance(node.target, torch._ops.HigherOrderOperator) and (made := _op_of(module, node)) is not None:
                op, arguments, library = made
                libraries.append(library)
                with module.graph.inserting_before(node):
                    call = module.graph.call_function(op, arguments)
                call.meta = dict(node.meta)
                node.replace_all_uses_with(call)
                module.graph.erase_node(node)
    return libraries


def _op_of(module, node):
    """(the op, its arguments, the library that has it); None of a region that is none of these, or draws."""
    run = _RUNS.get(node.target.name())
    if run is None:
        return None
    leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
    tensors, sizes, filled = [], [], []
    for leaf in leaves:
        if isinstance(leaf, torch.fx.Node) and leaf.op == "get_attr":
            leaf = module.get_submodule(leaf.target)
            if _draws(leaf):
                return None
        elif isinstance(leaf, torch.fx.Node):
            is_tensor = isinstance(leaf.meta.get("val"), torch.Tensor)
            if not is_tensor and not isinstance(leaf.meta.get("val"), int | torch.SymInt):
                return None
            given = tensors if is_tensor else sizes
            given.append(leaf)
            leaf = _Given(is_tensor, len(given) - 1)
        filled.append(leaf)
    name = f"{node.target.name()}_{next(_numbers)}"
    library = torch.library.Library("lowtide", "FRAGMENT")
    library.define(f"{name}(Tensor[] tensors, SymInt[] sizes) -> Tensor[]")

    def call(tensors, sizes):
        args, kwargs = pytree.tree_unflatten([_filled(leaf, tensors, sizes) for leaf in filled], spec)
        results = run(*args, **kwargs)
        # An op returns none of its operands, and no tensor twice.
        return [result.clone() if any(result is each for each in tensors) else result for result in results]

    library.impl(name, call, "CompositeImplicitAutograd")
    return getattr(torch.ops.lowtide, name).default, (tensors, sizes), library


@dataclass
class _Given:
    """Stands for what each call brings."""

    is_tensor: bool
    place: int


def _filled(leaf, tensors, sizes):
    if not isinstance(leaf, _Given):
        return leaf
    return (tensors if leaf.is_tensor else sizes)[leaf.place]


def _draws(graph_module):
    seeded = torch.Tag.nondeterministic_seeded
    nodes = (
        node for each in graph_module.modules() if isinstance(each, torch.fx.GraphModule) for node in each.graph.nodes
    )
    return any(isinstance(node.target, torch._ops.OpOverload) and seeded in node.target.tags for node in nodes)
