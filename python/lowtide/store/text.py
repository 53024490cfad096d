"""A captured graph as JSON text and back: what a later process needs to run it without an export.

NotStorable says what a text cannot hold; OtherCode that a custom function or op is no longer what it was.
"""

import base64
import dataclasses
import json
import math

import torch

from lowtide._lowtide import Graph
from lowtide.capture.containers import Filled
from lowtide.capture.export import Exported
from lowtide.capture.facts import Facts
from lowtide.capture.imported import ImportedGraph, Source
from lowtide.capture.inspections import Inspections
from lowtide.capture.known_sizes import Guard, KnownSizes, SizeText
from lowtide.capture.numbers import Item
from lowtide.capture.operators import overload_of
from lowtide.capture.output_views import OutputView
from lowtide.guards import Guards, Write
from lowtide.guards.collected import Collected
from lowtide.guards.held import names_in
from lowtide.guards.held import told as told_place
from lowtide.guards.settings import OF_EVERY_MODULE, Setting
from lowtide.guards.unread import Unread, is_unread
from lowtide.guards.values import DTYPES

from .calls import calls_from_json, calls_to_json
from .checks import check_captured
from .draws import draws_from_json, draws_to_json
from .questions import questions_from_json, questions_to_json
from .trees import DTYPE_OF, Classes, NotStorable, plain_from_json, structure_from_json, structure_to_json

_LARGEST = 64 << 20  # bytes of constants


class OtherCode(Exception):
    """What a stored graph depends on has changed: in words."""


def to_text(captured, module, digest):
    """`digest`: from a class of autograd.Function, or an op outside aten, to a hash of its code."""
    exported, imported = captured.exported, captured.imported
    if exported.inspections or exported.inspections.steps:
        raise NotStorable("forward inspects activations")
    if exported.lost:
        raise NotStorable("an output has gradients through a leaf that forward makes")
    if imported.groups:
        raise NotStorable("it is a graph of several processes")
    classes = Classes(exported.guards)
    sizes = imported.sizes
    return json.dumps(
        {
            "graph": captured.graph.text(),
            "sizes": {
                "dims": sizes.dims,
                "guards": [[guard.text, guard.tie, guard.fixed] for guard in sizes.guards],
                "ranges": sizes.ranges(),
                "dynamic_axes": [[name, sorted(axes.items())] for name, axes in sizes.dynamic_axes().items()],
            },
            "sources": [_source_to_json(source, exported.guards) for source in imported.sources],
            "outputs": imported.outputs,
            "views": [[view.base, view.steps, view.of_input] for view in imported.views],
            "random": imported.random,
            "facts": {
                "untied": [sorted(pair) for pair in captured.facts.untied],
                "moving": sorted(captured.facts.moving),
                "fixed": sorted(captured.facts.fixed),
                "exact": captured.facts.exact,
                "large": captured.facts.large,
                "free": captured.facts.free,
                "usual": captured.facts.usual,
                "known_buffers": captured.facts.known_buffers,
                "lists": captured.facts.lists,
                "keep": captured.facts.keep,
            },
            "names": exported.names,
            "example": [list(size) for size in exported.sizes],
            "functions": calls_to_json(exported.functions, classes),
            "code": _code_of(captured.graph, exported.functions, digest),
            "structure": structure_to_json(exported.output_structure, classes.name),
            "leaves": [_leaf_to_json(leaf, sizes) for leaf in exported.output_leaves],
            "is_tensor": exported.output_is_tensor,
            "draws": draws_to_json(exported.draws),
            "questions": questions_to_json(exported.questions),
            "settings": [_setting_to_json(setting, sizes) for setting in exported.settings],
            "prints": exported.prints,
            "writes": [_write_to_json(write) for write in exported.writes],
            "guards": {
                "reads": exported.guards.reads_to_json(),
                "asks_for_gradients": exported.guards.asks_for_gradients,
                "digest": exported.guards.digest(),
            },
        }
    )


def from_text(text, module, call, digest):
    """For this call. Raises OtherCode, or whatever a text raises that is none of ours, or not of this module."""
    # Deferred: the package's own file imports this one.
    from lowtide.capture import Captured

    told = json.loads(text)
    reads = told["guards"]
    guards = Guards.with_reads(module, reads["reads"], reads["asks_for_gradients"])
    if guards.digest() != reads["digest"]:
        raise OtherCode("what forward reads, or the code that it runs,")
    classes = Classes(guards)
    functions = calls_from_json(told["functions"], classes)
    graph = Graph.parse(told["graph"])
    graph.verify()
    now = _code_of(graph, functions, digest)
    if changed := [name for name in now.keys() | told["code"].keys() if now.get(name) != told["code"].get(name)]:
        raise OtherCode(min(changed))
    exported = Exported(
        program=None,
        names=told["names"],
        sizes=told["example"],
        functions=functions,
        inspections=Inspections(),
        output_structure=structure_from_json(told["structure"], classes),
        output_leaves=[_leaf_from_json(leaf) for leaf in told["leaves"]],
        output_is_tensor=told["is_tensor"],
        guards=guards,
        numbers=call.number_indices(),
        draws=draws_from_json(told["draws"], call),
        questions=questions_from_json(told["questions"], call, module),
        writes=tuple(Collected(*write[1:]) if write[0] is None else Write(*write) for write in told["writes"]),
        settings=tuple(_setting_from_json(setting) for setting in told["settings"]),
        prints=tuple(told["prints"]),
    )
    sizes = told["sizes"]
    known = KnownSizes(
        {name: tuple(dim) for name, dim in sizes["dims"].items()},
        [Guard(guard, _pairs(tie), tuple(fixed)) for guard, tie, fixed in sizes["guards"]],
        {name: tuple(bounds) for name, bounds in sizes["ranges"].items()},
        {name: dict(axes) for name, axes in sizes["dynamic_axes"]},
    )
    sources = [_source_from_json(source, module) for source in told["sources"]]
    outputs = [tuple(output) for output in told["outputs"]]
    views = [OutputView(base, tuple(map(tuple, steps)), of_input) for base, steps, of_input in told["views"]]
    facts = told["facts"]
    captured = Captured(
        exported,
        ImportedGraph(graph, known, sources, outputs, told["random"], views=views),
        Facts(
            frozenset(frozenset(_pairs(pair)) for pair in facts["untied"]),
            frozenset(_pairs(facts["moving"])),
            frozenset(_pairs(facts["fixed"])),
            facts["exact"],
            facts["large"],
            facts["free"],
            facts["usual"],
            facts["known_buffers"],
            facts["lists"],
            facts["keep"] and tuple(facts["keep"]),
        ),
    )
    check_captured(captured, module, call)
    return captured


def _code_of(graph, functions, digest):
    """What forward calls beside PyTorch's own ops: {name: hash of its code}."""
    told = {call.name: digest(call.function) for call in functions}
    for target in sorted({node["target"] for node in graph.nodes() if node["op"] == "Aten"}):
        if not target.startswith(("aten::", "lowtide::")):
            told[target] = digest(overload_of(target))
    return told


def _pairs(dims):
    return tuple(tuple(dim) for dim in dims)


# ---- sources


def _source_to_json(source, guards):
    fields = {field.name: getattr(source, field.name) for field in dataclasses.fields(source)}
    if source.kind == "constant" and not source.paths:
        if guards.place_of(source.tensor) is not None:
            raise NotStorable("forward reads a tensor of a container, or of a global")
        fields["tensor"] = _tensor_to_json(source.tensor)
    else:
        fields["tensor"] = None
    return fields


def _source_from_json(fields, module):
    fields = {**fields, "paths": tuple(fields["paths"])}
    if fields["tensor"] is not None:
        fields["tensor"] = _tensor_from_json(fields["tensor"])
    elif fields["kind"] == "constant":
        fields["tensor"] = _attribute(module, fields["paths"][0])
    return Source(**fields)


def _attribute(owner, path):
    """What lies there; nothing is computed."""
    for name in path.split("."):
        tables = [vars(owner), *(vars(owner).get(which, {}) for which in ("_modules", "_buffers", "_parameters"))]
        owner = next(table[name] for table in tables if name in table)
    return owner


def _tensor_to_json(tensor):
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.requires_grad or max(tensor.nbytes, reach * tensor.itemsize) > _LARGEST:
        raise NotStorable(f"forward holds a constant of {tensor.nbytes} bytes, or one that requires a gradient")
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return [DTYPES[tensor.dtype], list(tensor.shape), list(tensor.stride()), base64.b64encode(data).decode()]


def _tensor_from_json(told):
    dtype, shape, strides, text = told
    dtype, data = DTYPE_OF[dtype], bytearray(base64.b64decode(text))
    if len(shape) != len(strides) or any(type(each) is not int or each < 0 for each in (*shape, *strides)):
        raise ValueError(f"a tensor of the sizes {shape} and strides {strides}")
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if math.prod(shape) * dtype.itemsize != len(data) or (data and last * dtype.itemsize > _LARGEST):
        raise ValueError(f"a tensor of the sizes {shape} in {len(data)} bytes")
    flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    flat = flat != 0 if dtype is torch.bool else flat.view(dtype)
    return torch.empty_strided(shape, strides, dtype=dtype).copy_(flat.reshape(shape))


# ---- outputs


def _write_to_json(write):
    if isinstance(write, Filled):
        raise NotStorable("forward puts something into its arguments")
    if not isinstance(write, Collected):
        return [write.path, write.name, write.step]
    root, names = names_in(write.text)
    if root is not None or OF_EVERY_MODULE & {*names}:  # a hook has another key in each process
        raise NotStorable(f"forward puts tensors into {told_place(write.text)}")
    return [None, write.text, write.is_list, write.grows]


def _setting_to_json(setting, sizes):
    is_tuple = type(setting.value) is tuple
    items = setting.value if is_tuple else (setting.value,)
    return [setting.path, setting.name, is_tuple, [_leaf_to_json(item, sizes) for item in items]]


def _setting_from_json(told):
    path, name, is_tuple, items = told
    items = tuple(map(_leaf_from_json, items))
    return Setting(path, name, items if is_tuple else items[0])


def _leaf_to_json(leaf, sizes):
    if (size := SizeText.of(leaf, sizes)) is not None:
        return ["condition" if size.is_condition else "size", size.text]
    if is_unread(leaf):
        return ["string", leaf.number]
    if isinstance(leaf, Item):
        return ["item", None]
    if leaf is None or type(leaf) in (bool, int, str):
        return ["plain", leaf]
    if type(leaf) is float:
        return ["float", repr(leaf)]
    if isinstance(leaf, torch.dtype) and leaf in DTYPES:
        return ["dtype", DTYPES[leaf]]
    if isinstance(leaf, torch.device):
        return ["device", str(leaf)]
    raise NotStorable(f"an output is a {type(leaf).__qualname__}")


def _leaf_from_json(told):
    kind, value = told
    if kind == "condition":
        return SizeText(value, True)
    if kind == "item":
        return Item()
    made = {
        "size": SizeText,
        "plain": plain_from_json,
        "float": float,
        "dtype": DTYPE_OF.__getitem__,
        "string": Unread,
        "device": torch.device,
    }
    return made[kind](value)
