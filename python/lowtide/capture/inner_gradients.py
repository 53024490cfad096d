"""torch.autograd.grad inside of forward: one node while forward is traced, whose gradients PyTorch's autograd writes
out afterwards.

    h = sin(x)                                   h = sin(x)
    y = h * w                              →     y = h * w
    g = lowtide::gradients([y], [x], [1])        a = 1 * w
                                                 g = a * cos(x)

The exporter traces above autograd and sees nothing of what autograd does. So the calls that lead from `inputs` to
`outputs` are run again below it, with their backward, and who reads their results later reads those. The gradients that
the loss has are then those of ordinary calls.
"""

import operator
from dataclasses import dataclass

import torch
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx
from torch.fx.traceback import preserve_node_meta

from lowtide.errors import UnsupportedError

from .failures import failure_from
from .op_schemas import arguments_of, is_silent, memory_of, memory_of_nodes
from .plain_calls import plain_calls, refuse_statistics

_library = torch.library.Library("lowtide", "FRAGMENT")
_library.define("gradients(Tensor[] outputs, Tensor[] inputs, Tensor[] incoming) -> Tensor[]")
_ORIGIN = ("nn_module_stack", "stack_trace")
_WHERE = "torch.autograd.grad in forward"


@torch.library.register_fake("lowtide::gradients", lib=_library)
def _trace_gradients(outputs, inputs, incoming):
    return [torch.empty_like(tensor) for tensor in inputs]


def _note_tensors(ctx, inputs, output):
    ctx.tensors = [[tensor.detach() for tensor in given] for given in inputs]


def _depend_on_all(context, _):
    """Whoever asks while forward is traced hears that these gradients depend on all that there is."""
    return tuple([torch.zeros_like(tensor) for tensor in tensors] for tensors in context.tensors)


torch.library.register_autograd("lowtide::gradients", _depend_on_all, setup_context=_note_tensors, lib=_library)


def gradients(
    outputs,
    inputs,
    grad_outputs=None,
    retain_graph=None,
    create_graph=False,
    only_inputs=True,
    allow_unused=None,
    is_grads_batched=False,
    materialize_grads=False,
):
    """torch.autograd.grad while forward is traced."""
    if is_grads_batched or torch.is_autocast_enabled("cpu"):
        raise UnsupportedError(f"{_WHERE} under autocast, or of a batch of gradients")
    if torch._C._functorch.get_dynamic_layer_stack_depth():
        raise UnsupportedError("forward calls transforms of torch.func, which differentiate PyTorch's own operations")
    outputs, inputs = _listed(outputs), _listed(inputs)
    incoming = [None] * len(outputs) if grad_outputs is None else _listed(grad_outputs)
    with disable_proxy_modes_tracing():  # the user's mistakes, and which inputs have a gradient
        found = torch.autograd.grad(outputs, inputs, incoming, retain_graph=True, allow_unused=allow_unused)
    used = [tensor for tensor, gradient in zip(inputs, found, strict=True) if gradient is not None]
    incoming = [
        torch.ones_like(output) if gradient is None else gradient
        for output, gradient in zip(outputs, incoming, strict=True)
    ]
    written = iter(torch.ops.lowtide.gradients(outputs, used, incoming) if used else ())
    return tuple(
        (torch.zeros_like(tensor) if materialize_grads else None)
        if gradient is None
        else next(written)
        if create_graph
        else next(written).detach()
        for tensor, gradient in zip(inputs, found, strict=True)
    )


def _listed(tensors):
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def without_history(value):
    return value.detach() if isinstance(value, torch.Tensor) else value


def without_detach(graph):
    """Of what was recorded below autograd, which detaches what it keeps for its backward."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)


def write_out_gradients(graph_module):
    """Replaces the nodes in the graph and in those of its submodules.

    UnsupportedError where the calls cannot be run again, or have no gradients that have gradients themselves."""
    for module in list(graph_module.modules()):
        if isinstance(module, torch.fx.GraphModule):
            target = torch.ops.lowtide.gradients.default
            for node in module.graph.find_nodes(op="call_function", target=target):
                _write_out(module, node)
                module.recompile()


@dataclass
class _Between:
    """What leads from the inputs of a node to its outputs."""

    leaves: list  # inputs that depend on no other one
    calls: list  # in order
    operands: list  # that the calls read beside
    ends: list  # (output, its incoming gradient) of those that the inputs lead to


def _between(inputs, outputs, incoming, order):
    reached = set(inputs)
    for each in order:
        if each not in reached and not _cuts(each) and not reached.isdisjoint(each.all_input_nodes):
            reached.add(each)
    leaves = {each for each in inputs if _cuts(each) or reached.isdisjoint(each.all_input_nodes)}
    ends = [pair for pair in zip(outputs, incoming, strict=True) if pair[0] in reached]
    calls, pending = set(), [*inputs, *(output for output, _ in ends)]
    while pending:
        each = pending.pop()
        if each in reached and each not in leaves and each not in calls:
            calls.add(each)
            pending.extend(each.all_input_nodes)
    calls = sorted(calls, key=order.__getitem__)
    read = dict.fromkeys(operand for call in calls for operand in call.all_input_nodes)
    operands = [operand for operand in read if operand not in reached]
    return _Between([each for each in dict.fromkeys(inputs) if each in leaves], calls, operands, ends)


# What they return may be their argument itself, which the exporter then takes for a result of theirs.
_HANDING_ON = (
    *("alpha_dropout", "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_tensors", "cartesian_prod", "conj"),
    *("conj_physical", "contiguous", "dropout", "feature_alpha_dropout", "feature_dropout", "flatten", "lift"),
    *("positive", "real", "resolve_conj", "resolve_neg", "sum_to_size", "to", "type_as"),
)


def _as_it_came(node):
    """The node that made the tensor which this one returns."""
    while True:
        call, place = (node.args[0], node.args[1]) if node.target is operator.getitem else (node, 0)
        if getattr(call.target, "_opname", "") not in _HANDING_ON:
            return node
        given = call.args[0] if isinstance(call.args[0], list | tuple) else [call.args[0]]
        if place >= len(given) or not _may_be_one(call, given[place], node):
            return node
        node = given[place]


def _may_be_one(call, source, result):
    ours, theirs = source.meta["val"], result.meta["val"]
    given = {argument.name: value for argument, value in arguments_of(call)}
    is_new = given.get("copy") or given.get("train") and given.get("p")
    return not is_new and (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())


def _cuts(node):
    """Whether gradients end here."""
    if node.op != "call_function":
        return True
    if node.target is torch.ops.higher_order.wrap_with_set_grad_enabled:
        return not node.args[0]
    return node.target is torch.ops.aten.detach.default or getattr(node.target, "_opname", "") in _OF_A_SHAPE


_OF_A_SHAPE = ("ones_like", "zeros_like", "full_like", "empty_like", "rand_like", "randn_like", "new_zeros", "new_ones")
_DROPOUT = torch.ops.aten.dropout.default


def _write_out(module, node):
    outputs, inputs, incoming = node.args
    inputs = [_as_it_came(each) for each in inputs]
    _take_writes_out(module, node)
    order = _order(module.graph)
    between = _between(inputs, outputs, incoming, order)
    if drops := [call for call in between.calls if call.target is _DROPOUT and call.args[1] and call.args[2]]:
        for call in drops:
            _draw_before(module.graph, call)
        order = _order(module.graph)
        between = _between(inputs, outputs, incoming, order)
    for call in between.calls:
        _refuse_call(call)
    _refuse_writes(module, between, order, order[node])
    used = dict.fromkeys((*between.operands, *(gradient for _, gradient in between.ends)))
    known = {*between.leaves, *between.calls}
    operands = [each for each in used if each.op != "get_attr" and each not in known]
    constants = [each for each in used if each.op == "get_attr"]
    single = [call for call in between.calls if not isinstance(call.meta["val"], list | tuple)]

    def whole(leaves, values):
        again = _Again(module)
        again.env.update(zip(between.leaves, leaves, strict=True))
        again.env.update(zip(operands, values, strict=True))
        for each in (*constants, *between.calls):
            again.env[each] = again.run_node(each)
        sources, flowing = ([again.env[each] for each in ends] for ends in zip(*between.ends, strict=True))
        found = torch.autograd.grad(sources, [again.env[each] for each in inputs], flowing, allow_unused=True)
        if any(gradient is None for gradient in found):
            raise UnsupportedError(f"{_WHERE} of what does not depend on it")
        return [*found, *(again.env[call] for call in single)]

    leaves = [torch.empty_like(leaf.meta["val"]).requires_grad_() for leaf in between.leaves]
    values = [without_history(operand.meta["val"]) for operand in operands]
    with torch.enable_grad(), preserve_node_meta():
        try:
            traced = make_fx(whole, plain_calls(), "symbolic")(leaves, values)
        except Exception as error:  # PyTorch's, of what it cannot trace, or cannot without data
            raise failure_from(error) from None
    refuse_statistics(traced.graph)
    without_detach(traced.graph)
    _splice(module.graph, node, (*between.leaves, *operands), single, traced.graph, order)


def _order(graph):
    return {node: place for place, node in enumerate(graph.nodes)}


def _draw_before(graph, call):
    """x * dropout(1) for dropout(x): what is drawn depends on no value, and is not drawn again."""
    x, *settings = call.args
    with graph.inserting_before(call):
        ones = graph.call_function(torch.ops.aten.ones_like.default, (x,))
        drawn = graph.call_function(_DROPOUT, (ones, *settings))
    ones.meta, drawn.meta = dict(call.meta), dict(call.meta)
    call.target, call.args = torch.ops.aten.mul.Tensor, (x, drawn)


class _Again(torch.fx.Interpreter):
    """Calls that have been in a graph, once more, without what they write beside their results."""

    def call_function(self, target, args, kwargs):
        if target is torch.ops.aten.batch_norm.default and args[5]:
            args = (*args[:3], None, None, *args[5:])
        elif isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable:
            target = _without_write(target)
        return super().call_function(target, args, kwargs)


def _without_write(target):
    """add for add_; None where there is none."""
    packet = getattr(torch.ops.aten, target._opname.removesuffix("_"), None)
    is_in_place = target.namespace == "aten" and target._opname.endswith("_")
    return getattr(packet, target._overloadname, None) if is_in_place else None


def _refuse_call(call):
    target = call.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        raise UnsupportedError(f"{_WHERE} through {target}")
    if isinstance(target, torch._ops.OpOverload):
        given = {argument.name: (None, value) for argument, value in arguments_of(call)}
        is_random = torch.Tag.nondeterministic_seeded in target.tags and not is_silent(given)
        is_unknown = target.namespace == "lowtide" or target._schema.is_mutable and _without_write(target) is None
        if is_random or is_unknown:
            raise UnsupportedError(f"{_WHERE} through {target}, which cannot run twice")


def _take_writes_out(module, end):
    """x.add(y) for x.add_(y), up to the node `end`, where x is nobody else's: what runs again reads x once more."""
    memory = {}
    for node in module.graph.nodes:
        if node is end:
            break
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            without = _without_write(node.target)
            if without is not None and _is_alone(node.args[0], memory) and _keeps_dtype(node):
                node.target = without
        memory[node] = memory_of(node, memory)


def _is_alone(written, memory):
    """Whether only the one call that writes it reads this tensor."""
    is_made = written.op == "call_function" and memory[written] is written and _as_it_came(written) is written
    return is_made and len(written.users) == 1


def _keeps_dtype(call):
    """Whether the result has the dtype of what is written also where nothing is."""
    written, *others = (operand.meta["val"] for operand in call.all_input_nodes)
    dtypes = [other.dtype for other in others if isinstance(other, torch.Tensor)]
    return all(torch.promote_types(written.dtype, dtype) == written.dtype for dtype in dtypes)


def _refuse_writes(module, between, order, end):
    """Where what runs again may see other values than at first."""
    memory = memory_of_nodes(module)
    read = {memory[each] for each in (*between.leaves, *between.calls, *between.operands)}
    for node in module.graph.nodes:
        if order[node] >= end or not isinstance(node.target, torch._ops.OpOverload):
            continue
        for argument, value in arguments_of(node) if node.target._schema.is_mutable else ():
            if argument.is_write and memory.get(value) in read:
                raise UnsupportedError(f"{_WHERE} of what is changed in place")


def _splice(graph, node, given, calls, traced, order):
    """The calls of `traced`, which takes `given`, in the place of the node; behind it also in that of `calls`."""
    places = [each for each in traced.nodes if each.op == "placeholder"]
    copies = dict(zip(places, given, strict=True))
    origin = {key: node.meta[key] for key in _ORIGIN if key in node.meta}
    with graph.inserting_before(node):
        for each in traced.nodes:
            if each.op == "get_attr":
                raise UnsupportedError(f"{_WHERE} needs a constant")
            if each.op != "call_function":
                continue
            copies[each] = copy = graph.node_copy(each, copies.__getitem__)
            copy.meta = {**origin, **copy.meta}
    (output,) = traced.find_nodes(op="output")
    results = [copies.get(result) for result in output.args[0]]
    count = len(node.args[1])
    for user in list(node.users):
        user.replace_all_uses_with(results[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(node)
    for call, result in zip(calls, results[count:], strict=True):
        if result is not None:
            call.replace_all_uses_with(result, lambda user: order.get(user, -1) > order[node])
