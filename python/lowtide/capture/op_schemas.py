"""What a call in a captured FX graph says by the schema of its op: arguments, aliases, writes."""

import operator

import torch

_MAY_CHANGE_NOTHING = frozenset("to type_as positive real resolve_conj atleast_1d atleast_2d atleast_3d".split())


def arguments_of(node):
    """(schema argument, value) in schema order, defaults filled in, None left out."""
    for position, argument in enumerate(node.target._schema.arguments):
        if position < len(node.args) and not argument.kwarg_only:
            value = node.args[position]
        else:
            value = node.kwargs.get(argument.name, argument.default_value)
        if value is not None:
            yield argument, value


def is_call(node):
    """Whether a node of an FX graph calls an op that has a schema."""
    return node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)


def written_by(node):
    """What a node of an FX graph writes into."""
    if is_call(node) and node.target._schema.is_mutable:
        yield from (value for argument, value in arguments_of(node) if argument.is_write)


def writes_of_call(overload, names):
    """Places of the operands that a call of PyTorch writes into; what ATen's ops in place write is functionalise's."""
    if is_in_place(overload):
        return []
    written = {argument.name for argument in overload._schema.arguments if argument.is_write}
    return [index for index, name in enumerate(names) if name in written]


def is_in_place(overload):
    """Whether it is ATen's and writes nothing but its first argument."""
    written = [argument.is_write for argument in overload._schema.arguments]
    return overload.namespace == "aten" and not any(written[1:])


# What a call that makes a tensor of nothing is asked, and one with out= is told by its out.
_OF_MADE = ("dtype", "layout", "device", "pin_memory")


def without_out(overload):
    """The overload that returns what this one of ATen's writes into `out`; None where there is none."""
    arguments = overload._schema.arguments
    if overload.namespace != "aten" or [argument.name for argument in arguments if argument.is_write] != ["out"]:
        return None
    wanted = [(argument.name, str(argument.real_type)) for argument in arguments if argument.name != "out"]
    for name in overload.overloadpacket.overloads():
        found = getattr(overload.overloadpacket, name)
        told = [(argument.name, str(argument.real_type)) for argument in found._schema.arguments]
        if wanted in (told, [pair for pair in told if pair[0] not in _OF_MADE]):
            return found
    return None


def takes_dtype(overload):
    return any(argument.name == "dtype" for argument in overload._schema.arguments)


def labels_of(argument):
    return set(argument.alias_info.before_set) | set(argument.alias_info.after_set)


def memory_of_nodes(graph_module):
    """Node → the node whose memory it lies in: of placeholders and calls, itself where it is nobody else's."""
    root = {}
    for node in graph_module.graph.nodes:
        root[node] = memory_of(node, root)
    return root


def memory_of(node, root):
    """That of one node, where `root` has it of those before."""
    if node.op == "call_function" and node.target is operator.getitem:
        return root.get(node.args[0], node.args[0])
    found = node
    if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
        for argument, value in arguments_of(node):
            if argument.alias_info is not None and isinstance(value, torch.fx.Node):
                found = root.get(value, value)
    return found


def written_tensor(node):
    """The node whose tensor calls that write in place, or into `out`, return; what changes nothing returns it, too."""
    while isinstance(node, torch.fx.Node) and isinstance(node.target, torch._ops.OpOverload):
        if _changes_nothing(node):
            node = node.args[0]
            continue
        returns = [output.alias_info for output in node.target._schema.returns]
        written = [value for argument, value in arguments_of(node) if argument.is_write]
        if len(returns) != 1 or len(written) != 1 or returns[0] is None or not returns[0].is_write:
            break
        node = written[0]
    return node


def _changes_nothing(node):
    """`x.to(x.dtype)` is x itself, not a view of it, unless a copy is asked for; so are `+x` and others."""
    is_one = node.target.namespace == "aten" and node.target._opname in _MAY_CHANGE_NOTHING
    if not is_one or not isinstance(node.args[0], torch.fx.Node):
        return False
    given = {argument.name: value for argument, value in arguments_of(node)}
    if given.get("copy") or given.get("memory_format") not in (None, torch.preserve_format):
        return False
    before, after = node.args[0].meta.get("val"), node.meta.get("val")
    if before is None or before.dim() != after.dim() or before.is_conj() != after.is_conj():
        return False
    return (before.dtype, before.device) == (after.dtype, after.device)


def is_silent(attrs):
    """Dropout that drops nothing."""
    for name in ("p", "dropout_p", "dropout"):
        if name in attrs and attrs[name][1] == 0:
            return True
    return attrs.get("train", attrs.get("training", ("bool", True)))[1] is False


def target_name(target):
    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}::{target._opname}.{target._overloadname}"
    return str(target)
