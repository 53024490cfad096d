"""torch.vmap over pointwise calls, as Dynamo writes it into its graphs: its regions become the calls themselves.

    vmap_increment_nesting(n)                  →
    a' = add_batch_dim(a, 0, level)
    b' = add_batch_dim(b, 0, level)
    c' = a' * b'                                   c = a * b
    c = remove_batch_dim(c', level, n, 0)
    vmap_decrement_nesting()

torch.export keeps such regions, and what is in them is not what it says. associative_scan is made of them (mamba).
"""

import torch

_BEGIN, _END = "_vmap_increment_nesting", "_vmap_decrement_nesting"
_ENTER, _LEAVE = "_add_batch_dim", "_remove_batch_dim"
_OF_OPERATORS = {"truediv": "div"}  # to PyTorch's names


def inline_pointwise_vmap(graph):
    """Rewrites the regions of `graph` in which every call is pointwise; the others stay."""
    region = None
    for node in list(graph.nodes):
        name = _name(node)
        if name == _BEGIN:
            region = [node]  # one that has another inside stays, the inner one goes
        elif region is not None:
            region.append(node)
            if name == _END:
                if _is_pointwise(region):
                    _inline(graph, region)
                region = None
    if not any(_name(node) == _BEGIN for node in graph.nodes):
        for node in [node for node in graph.nodes if _name(node) == "lazy_load_decompositions"]:
            graph.erase_node(node)


def _name(node):
    return getattr(node.target, "__name__", "") if node.op == "call_function" else ""


def _rank(node):
    example = node.meta.get("example_value")
    return example.ndim if isinstance(example, torch.Tensor) else 0


def _is_pointwise(region):
    """Whether its calls do to whole tensors what they do to the rows of them."""
    entered = [node for node in region if _name(node) == _ENTER]
    left = [node for node in region if _name(node) == _LEAVE]
    if len({_rank(node.args[0]) for node in entered}) != 1:
        return False  # operands of other ranks meet each other from the right
    if any(node.args[1] != 0 for node in entered) or any(node.args[3] != 0 for node in left):
        return False
    batched = set(entered)
    for node in region[1:-1]:
        if node in batched or _name(node) == _LEAVE:
            continue
        others = [operand for operand in node.all_input_nodes if operand not in batched]
        if not _call_is_pointwise(node) or any(_rank(other) >= _rank(entered[0].args[0]) for other in others):
            return False
        if len(others) < len(node.all_input_nodes):
            batched.add(node)
    return all(node.args[0] in batched for node in left)


def _call_is_pointwise(node):
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if node.op == "call_method" else _name(node)
    packet = getattr(torch.ops.aten, _OF_OPERATORS.get(name, name), None)
    if packet is None or name.endswith("_"):
        return False
    overloads = [getattr(packet, overload) for overload in packet.overloads() if "out" not in overload]
    of_tensors = [overload for overload in overloads if "Tensor" in str(overload._schema)]
    return bool(of_tensors) and all(torch.Tag.pointwise in overload.tags for overload in of_tensors)


def _inline(graph, region):
    for node in region:
        if _name(node) == _LEAVE:
            node.args[0].meta["example_value"] = node.meta.get("example_value")  # of the whole, not of a row
        if _name(node) in (_ENTER, _LEAVE):
            node.replace_all_uses_with(node.args[0])
    for node in reversed(region):
        if _name(node) in (_BEGIN, _END, _ENTER, _LEAVE):
            graph.erase_node(node)
