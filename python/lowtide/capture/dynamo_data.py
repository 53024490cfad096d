"""`tensor.data` in Dynamo's graphs, which no trace sees. There it is asked for as in Python, and its elements are
written where it is set and nobody can tell that the memory is another.

    w = _get_data_attr(p)                      w = data_of(p)
    v = clamp(w, -1, 1)                        v = clamp(w, -1, 1)
    s = set_(p, v)                     ->      s = write_data(p, v)
    _lower_version_count_by_1(s)
"""

import torch

from lowtide.guards import write_data


def data_as_calls(graph):
    """Rewrites `graph`. Data that is set to what others read too stays as it is, and is refused."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        name = getattr(node.target, "__name__", None)
        if name == "_get_data_attr":
            node.target = data_of
        elif name == "set_" and len(node.args) == 2 and _is_own(node, order):
            node.target = write_data
            for user in [user for user in node.users if "_lower_version_count" in getattr(user.target, "__name__", "")]:
                graph.erase_node(user)
            node.replace_all_uses_with(node.args[0])
            if _is_itself(*node.args):
                graph.erase_node(node)


def data_of(tensor):
    """As Python asks for it, which guards.calls sees."""
    return tensor.data


def _is_own(node, order):
    """Whether the new data is computed for this alone, and the old data is read no more."""
    tensor, value = node.args
    computed = getattr(value, "op", "placeholder") not in ("placeholder", "get_attr") and not _is_alias(value)
    if not computed or set(value.users) != {node}:
        return False
    pending = [user for user in tensor.users if _is_alias(user) and order[user] < order[node]]
    while pending:
        alias = pending.pop()
        if any(order[user] > order[node] for user in alias.users):
            return False
        pending.extend(user for user in alias.users if _is_alias(user))
    return True


def _is_itself(tensor, value):
    """What `module.to(dtype)` gives a parameter that has the dtype: it goes on to be what it was, with its gradient."""
    tensor, value = (node.meta.get("example_value") for node in (tensor, value))
    return tensor is not None and value is tensor


def _is_alias(node):
    example = node.meta.get("example_value")
    return node.target in ("detach", data_of) or isinstance(example, torch.Tensor) and example._is_view()
