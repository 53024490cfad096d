"""Whether a graph that was read from a file speaks of what is there: numbers in range, lists as long as they must be,
tensors of the module and the call that are what the graph takes. Each check raises ValueError."""

import torch

from lowtide.capture import trees
from lowtide.capture.functions import Given, _Tree
from lowtide.capture.known_sizes import SizeText
from lowtide.capture.operators import overload_of
from lowtide.guards.collected import Collected
from lowtide.guards.held import container_of, names_in, value_at, way_to
from lowtide.guards.settings import OF_EVERY_MODULE
from lowtide.guards.unread import is_unread
from lowtide.guards.values import dtype_name


def check_captured(captured, module, call):
    exported, imported = captured.exported, captured.imported
    _expect(exported.names == call.names(module.forward), "the names of the call's tensors")
    _expect(len(exported.sizes) == len(exported.names), "the sizes of an example of each tensor")
    for size, tensor in zip(exported.sizes, call.tensors, strict=True):
        _expect(_are_wholes(size) and len(size) == tensor.dim(), "sizes of the call's ranks")
    _check_sizes(imported.sizes, exported)
    _check_facts(captured.facts, exported)
    inputs = imported.graph.inputs()
    _expect(len(inputs) == len(imported.sources), "a source of each input")
    for source, taken in zip(imported.sources, inputs, strict=True):
        _check_source(source, taken, imported.graph, module, call)
    _check_outputs(captured, call)
    _check_writes(exported, module)
    _expect(all(type(text) is str for text in exported.prints), "texts that forward prints")
    _check_nodes(imported.graph, exported.functions)
    _expect(type(imported.random) is bool, "whether forward is random")


def _expect(condition, what):
    if not condition:
        raise ValueError(f"expected {what}")


def _is_whole(value, end=2**63):
    return type(value) is int and 0 <= value < end


def _are_wholes(values):
    return type(values) in (list, tuple) and all(_is_whole(value) for value in values)


def _is_dim(dim, exported):
    return len(dim) == 2 and _is_whole(dim[0], len(exported.sizes)) and _is_whole(dim[1], len(exported.sizes[dim[0]]))


def _check_sizes(sizes, exported):
    for name, dim in sizes.dims.items():
        _expect(name.isidentifier() and _is_dim(dim, exported), "dims of the call's tensors")
    for guard in sizes.guards:
        _expect(len(guard.tie) in (0, 2) and all(_is_dim(dim, exported) for dim in guard.tie), "ties of two dims")
        _expect(not guard.fixed or _is_dim(guard.fixed, exported), "a constant dim")
    for formula in (*sizes.guards, *(leaf for leaf in exported.output_leaves if isinstance(leaf, SizeText))):
        sizes.formula(formula.text)
    for name, (low, high) in sizes.ranges().items():
        _expect(name in sizes.dims and _is_whole(low) and (high is None or _is_whole(high)), "ranges of dims")
    for name, axes in sizes.dynamic_axes().items():
        _expect(name in exported.names, "dynamic axes of the call's tensors")
        _expect(all(_is_whole(axis) and axes[axis] in sizes.dims for axis in axes), "names of dynamic axes")


def _check_facts(facts, exported):
    dims = [dim for pair in facts.untied for dim in pair]
    _expect(all(_is_dim(dim, exported) for dim in (*dims, *facts.moving, *facts.fixed)), "facts about dims")
    _expect(type(facts.exact) is bool, "whether the export was of the example's sizes")
    _expect(type(facts.large) is bool, "whether free sizes were no less than 2")
    _expect(type(facts.free) is bool, "whether all sizes of images were free")
    _expect(type(facts.usual) is bool, "whether usual data were taken for granted")
    _expect(type(facts.known_buffers) is bool, "whether numbers in buffers were constants")
    _expect(type(facts.lists) is bool, "whether tensors made of numbers were constants")
    _expect(facts.keep is None or all(type(path) is str for path in facts.keep), "which outputs were kept")


def _check_source(source, taken, graph, module, call):
    _expect(
        source.kind == taken["kind"] and source.requires_grad is taken["requires_grad"], "the graph's kind of input"
    )
    _expect(type(source.used) is bool and type(source.name) is str, "a name, and whether the input is used")
    if source.kind == "input":
        _expect(_is_whole(source.index, len(call.tensors)), "a tensor of the call")
        tensors = [call.tensors[source.index]]
    elif source.kind == "constant":
        tensors = [source.tensor]
    else:
        _expect(len(source.paths) > 0, "a name in the module")
        get = module.get_parameter if source.kind == "param" else module.get_buffer
        tensors = [get(path) for path in source.paths]
    dtype, shape = graph.value_type(taken["value"])
    for tensor in tensors:
        _expect(isinstance(tensor, torch.Tensor), "a tensor")
        _expect(dtype_name(tensor.dtype) == dtype and tensor.dim() == len(shape), "the dtype and rank of the input")
        _expect(source.kind == "input" or list(tensor.shape) == list(shape), "the sizes of the module's tensor")


def _check_outputs(captured, call):
    exported, imported = captured.exported, captured.imported
    made = [output for output in imported.graph.outputs() if output["kind"] == "output"]
    ends = {"graph": len(made), "source": len(imported.sources), "view": len(imported.views)}
    _expect(all(_is_whole(index, ends[kind]) for kind, index in imported.outputs), "outputs of the graph")
    ends_of_views = len(made), len(imported.sources), imported.sizes
    _expect(all(view.is_of(*ends_of_views) for view in imported.views), "views of the graph's outputs and inputs")
    flags = exported.output_is_tensor
    _expect(
        all(type(flag) is bool for flag in flags) and len(flags) == len(exported.output_leaves), "leaves of outputs"
    )
    _expect(sum(flags) == len(imported.outputs), "a tensor for each of the outputs that are tensors")
    strings = [leaf.number for leaf in exported.output_leaves if is_unread(leaf)]
    _expect(all(_is_whole(number, len(call.strings())) for number in strings), "strings of the call")
    # A tree of this structure must have it.
    leaves = [
        torch.empty(0) if is_tensor else 0 if isinstance(leaf, SizeText) else leaf
        for is_tensor, leaf in zip(flags, exported.output_leaves, strict=True)
    ]
    again = trees.flatten(trees.unflatten(leaves, exported.output_structure))
    _expect(len(again[0]) == len(leaves) and again[1] == exported.output_structure, "a structure of the outputs")


def _check_writes(exported, module):
    for setting in exported.settings:
        _check_attribute(setting, module)
    for write in exported.writes:
        if isinstance(write, Collected):
            _check_collected(write, module)
            continue
        attributes = _check_attribute(write, module)
        _expect(write.step is None or type(write.step) is int, "a step of a counter")
        _expect(write.step is None or type(attributes.get(write.name)) is int, "a counter")
    if exported.writes:
        leaves = [0 if isinstance(leaf, SizeText) else leaf for leaf in exported.output_leaves]
        output = trees.unflatten(leaves, exported.output_structure)
        count = sum(write.step is None for write in exported.writes)
        _expect(type(output) is tuple and len(output) == 2 and type(output[1]) is list, "an output and what is set")
        _expect(len(output[1]) == count, "a value for each attribute that is set")


def _check_attribute(write, module):
    """What the module has."""
    _expect(type(write.name) is str and write.name[:2] != "__", "a name of an attribute")
    _expect(write.name not in OF_EVERY_MODULE, "an attribute of the user's")
    return vars(module.get_submodule(write.path))


def _check_collected(write, module):
    flags = {type(write.is_list), type(write.grows)}
    _expect(type(write.text) is str and flags == {bool}, "a place, and whether a list is there")
    root, names = names_in(write.text)
    _expect(root is None and not any(name[:2] == "__" for name in names), "a place in what the module holds")
    _expect(not OF_EVERY_MODULE & {*names}, "attributes of the user's")
    if write.is_list or write.grows:
        _expect(type(value_at(module, write.text)) is list, "a list")
    else:
        owner, _ = way_to(module, write.text)[-1]
        container_of(module, write.text)
        _expect(not isinstance(owner, torch.nn.Module | type), "a container")


def _check_nodes(graph, functions):
    for node in graph.nodes():
        _expect(not node["has_body"], "a graph without groups")
        if node["op"] == "Aten" and node["target"] != "lowtide::inspect.default":
            arguments = overload_of(node["target"])._schema.arguments
            _expect(all(argument.name != "filename" for argument in arguments), "operators that open no files")
        elif node["op"] == "PythonOp":
            _, number = node["attrs"]["call"]
            _expect(_is_whole(number, len(functions)), "a call of a function")
            _check_call(functions[number], node)


def _check_call(call, node):
    sizes = node["attrs"].get("sizes", ("ints", []))[1]
    ends = {"tensor": call.operands, "number": call.operands, "size": len(sizes)}
    _expect(_is_whole(call.operands) and call.operands == len(node["inputs"]), "the operands of a function")
    for given in _given(call.arguments):
        _expect(_is_whole(given.index, ends[given.kind]), "arguments that a call brings")
    _expect(len(call.needs_input_grad) == len(call.arguments), "which arguments need a gradient")
    switches = (call.autocast[0], call.single, *call.needs_input_grad)
    _expect(all(type(switch) is bool for switch in switches), "switches of a function that are on or off")
    _expect(all(_is_whole(operand, call.operands) for operand in call.dirty), "operands that forward changes")
    places = []
    for kind, *rest in call.outputs:
        if kind != "value":
            is_operand = kind in ("dirty", "written")
            _expect(len(rest) == (3 if is_operand else 2) and (is_operand or kind == "tensor"), "outputs of a function")
            _expect(not is_operand or _is_whole(rest[2], call.operands), "the operand that an output is")
            places.append(rest[0])
    _expect(places == list(range(len(node["outputs"]))), "the outputs of a function in order")


def _given(values):
    for value in values:
        if isinstance(value, Given):
            yield value
        elif isinstance(value, _Tree):
            yield from _given(value.leaves)
        elif isinstance(value, list | tuple):
            yield from _given(value)
