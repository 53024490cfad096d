"""A captured graph as JSON text and back: what a later process needs to run it without an export.

NotStorable says what a text cannot hold. Nothing is executed while reading: classes of outputs are looked up by name
among those that are imported and that PyTorch's trees know.
"""

import base64
import dataclasses
import importlib
import json
import re
from collections import UserDict

import torch
import torch.utils._pytree as pytree

from lowtide._lowtide import Graph

from . import trees
from .call import DTYPES
from .export import Exported, Facts
from .functions import FunctionTable
from .inspections import Inspections
from .sizes import Guard, KnownSizes, SizeText
from .transcribe import Source, Transcript
from .watch import Reads

_DTYPES = {name: dtype for dtype, name in DTYPES.items()}
_DEEPEST = 3  # attributes from a module to an object whose attributes forward read
_LARGEST = 64 << 20  # bytes of constants


class NotStorable(Exception):
    """With the reason."""


def to_text(captured, module):
    exported, transcript = captured.exported, captured.transcript
    if exported.functions:
        raise NotStorable(f"forward calls the custom autograd.Function {exported.functions[0].name}")
    if exported.inspections or exported.inspections.steps:
        raise NotStorable("forward inspects activations")
    text = captured.graph.text()
    for target in re.findall(r"= (\w+::[\w.]+)", text):
        if not target.startswith("aten::"):
            raise NotStorable(f"forward calls {target}, which may be another op in a later process")
    sizes = transcript.sizes
    return json.dumps(
        {
            "graph": text,
            "sizes": {
                "dims": sizes.dims,
                "guards": [[guard.text, guard.tie, guard.fixed] for guard in sizes.guards],
                "ranges": sizes.ranges(),
                "dynamic_axes": [[name, sorted(axes.items())] for name, axes in sizes.dynamic_axes().items()],
            },
            "sources": [_source_to_json(source) for source in transcript.sources],
            "outputs": transcript.outputs,
            "random": transcript.random,
            "facts": {
                "untied": [sorted(pair) for pair in captured.facts.untied],
                "moving": sorted(captured.facts.moving),
                "fixed": sorted(captured.facts.fixed),
                "exact": captured.facts.exact,
            },
            "names": exported.names,
            "example": [list(size) for size in exported.sizes],
            "checkpoints": exported.functions.checkpoints,
            "structure": structure_to_json(exported.output_structure),
            "leaves": [_leaf_to_json(leaf, sizes) for leaf in exported.output_leaves],
            "is_tensor": exported.output_is_tensor,
            "reads": _reads_to_json(exported.reads, module),
        }
    )


def from_text(text, module):
    """Raises whatever a text raises that is none of ours, or not of this module."""
    # Deferred: the package's own file imports this one.
    from lowtide.capture import Captured

    told = json.loads(text)
    functions = FunctionTable()
    functions.checkpoints = told["checkpoints"]
    exported = Exported(
        program=None,
        names=told["names"],
        sizes=told["example"],
        functions=functions,
        inspections=Inspections(),
        output_structure=structure_from_json(told["structure"]),
        output_leaves=[_leaf_from_json(leaf) for leaf in told["leaves"]],
        output_is_tensor=told["is_tensor"],
        reads=_reads_from_json(told["reads"], module),
    )
    sizes = told["sizes"]
    known = KnownSizes(
        {name: tuple(dim) for name, dim in sizes["dims"].items()},
        [Guard(guard, _pairs(tie), tuple(fixed)) for guard, tie, fixed in sizes["guards"]],
        {name: tuple(bounds) for name, bounds in sizes["ranges"].items()},
        {name: dict(axes) for name, axes in sizes["dynamic_axes"]},
    )
    graph = Graph.parse(told["graph"])
    graph.verify()
    sources = [_source_from_json(source, module) for source in told["sources"]]
    outputs = [tuple(output) for output in told["outputs"]]
    facts = told["facts"]
    return Captured(
        exported,
        Transcript(graph, known, sources, outputs, told["random"]),
        Facts(
            frozenset(frozenset(_pairs(pair)) for pair in facts["untied"]),
            frozenset(_pairs(facts["moving"])),
            frozenset(_pairs(facts["fixed"])),
            facts["exact"],
        ),
    )


def _pairs(dims):
    return tuple(tuple(dim) for dim in dims)


# ---- sources


def _source_to_json(source):
    fields = {field.name: getattr(source, field.name) for field in dataclasses.fields(source)}
    if source.kind == "constant" and not source.paths:
        fields["tensor"] = _tensor_to_json(source.tensor)
    else:
        fields["tensor"] = None
    return fields


def _source_from_json(fields, module):
    fields = {**fields, "paths": tuple(fields["paths"])}
    if fields["tensor"] is not None:
        fields["tensor"] = _tensor_from_json(fields["tensor"])
    elif fields["kind"] == "constant":
        fields["tensor"] = _walk(module, fields["paths"][0].split("."))
    return Source(**fields)


def _tensor_to_json(tensor):
    if tensor.requires_grad or tensor.nbytes > _LARGEST:
        raise NotStorable(f"forward holds a constant of {tensor.nbytes} bytes, or one that requires a gradient")
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return [DTYPES[tensor.dtype], list(tensor.shape), list(tensor.stride()), base64.b64encode(data).decode()]


def _tensor_from_json(told):
    dtype, shape, strides, text = told
    data = bytearray(base64.b64decode(text))
    flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    tensor = torch.empty_strided(shape, strides, dtype=_DTYPES[dtype])
    return tensor.copy_(flat.view(_DTYPES[dtype]).reshape(shape))


def _walk(owner, path):
    for name in filter(None, path):
        owner = getattr(owner, name)
    return owner


# ---- outputs


def structure_to_json(structure):
    opened = []
    for index, node, inner in structure.opened:
        opened.append([index, _opened_to_json(node), structure_to_json(inner)])
    return [_spec_to_json(structure.spec), opened]


def structure_from_json(told):
    spec, opened = told
    return trees.Structure(
        _spec_from_json(spec),
        tuple((index, _opened_from_json(node), structure_from_json(inner)) for index, node, inner in opened),
    )


def _opened_to_json(node):
    """A Mapping or dataclass that PyTorch does not know; `empty` must be what its class alone makes."""
    kind = "of dict"
    if dataclasses.is_dataclass(node.type):
        kind = "dataclass"
        if any(value is not None for value in vars(node.empty).values()):
            raise NotStorable(f"the output holds a {node.type.__qualname__} with more than its fields")
    elif node.empty is not None:
        kind = "empty"
        more = set(vars(node.empty)) - {"data"} if hasattr(node.empty, "__dict__") else ()
        if more or not isinstance(node.empty, dict | UserDict):
            raise NotStorable(f"the output holds a {node.type.__qualname__} with more than its items")
    return [_class_name(node.type), kind, _context_to_json(node.keys)]


def _opened_from_json(told):
    name, kind, keys = told
    cls, keys, empty = _class_of(name), _context_from_json(keys), None
    if kind == "dataclass":
        empty = object.__new__(cls)
        for key in keys:
            object.__setattr__(empty, key, None)
    elif kind == "empty":
        empty = cls()
    return trees.Opened(cls, keys, empty)


def _spec_to_json(spec):
    if spec.type is None:
        return None
    children = [_spec_to_json(child) for child in spec.children()]
    return [_class_name(spec.type), _context_to_json(spec.context), children]


def _spec_from_json(told):
    if told is None:
        return _LEAF
    name, context, children = told
    kind = _find(name)
    if kind not in pytree.SUPPORTED_NODES:
        raise ValueError(f"PyTorch's trees do not know {name}")
    return pytree.TreeSpec(kind, _context_from_json(context), [_spec_from_json(child) for child in children])


_LEAF = pytree.tree_flatten(0)[1]


def _class_name(cls):
    if (
        "<locals>" in cls.__qualname__
        or cls.__module__ == "__main__"
        and not hasattr(importlib.import_module("__main__"), cls.__qualname__.split(".")[0])
    ):
        raise NotStorable(f"the output holds a {cls.__qualname__}, which no later process can find by its name")
    return [cls.__module__, cls.__qualname__]


def _find(name):
    """By its module and qualified name."""
    module, qualname = name
    return _walk(importlib.import_module(module), qualname.split("."))


def _class_of(name):
    found = _find(name)
    if not isinstance(found, type):
        raise ValueError(f"{name} is no class")
    return found


def _context_to_json(context):
    """What PyTorch's trees keep of a node: keys, a class (of a namedtuple), a limit (of a deque)."""
    if isinstance(context, list | tuple):
        return ["list" if isinstance(context, list) else "tuple", [_context_to_json(item) for item in context]]
    if isinstance(context, type):
        return ["class", _class_name(context)]
    if context is None or type(context) in (bool, int, float, str):
        return ["plain", context]
    raise NotStorable(f"the output is made with a {type(context).__qualname__}")


def _context_from_json(told):
    kind, value = told
    if kind in ("list", "tuple"):
        items = [_context_from_json(item) for item in value]
        return items if kind == "list" else tuple(items)
    return _class_of(value) if kind == "class" else value


def _leaf_to_json(leaf, sizes):
    if isinstance(leaf, torch.SymInt | SizeText):
        return ["size", leaf.text if isinstance(leaf, SizeText) else sizes.python(leaf)]
    if leaf is None or type(leaf) in (bool, int, str):
        return ["plain", leaf]
    if type(leaf) is float:
        return ["float", repr(leaf)]
    if isinstance(leaf, torch.dtype) and leaf in DTYPES:
        return ["dtype", DTYPES[leaf]]
    raise NotStorable(f"an output is a {type(leaf).__qualname__}")


def _leaf_from_json(told):
    kind, value = told
    readers = {"size": SizeText, "plain": lambda plain: plain, "float": float, "dtype": _DTYPES.__getitem__}
    return readers[kind](value)


# ---- what forward read of the Python objects around it


def _reads_to_json(reads, module):
    places = {id(child): [path, []] for path, child in reversed(list(module.named_modules()))}
    owners = {**reads.attributes, **reads.computed}.values()
    wanted = {id(owner): owner for owner in owners if id(owner) not in places and not _is_exporters(owner)}
    if wanted:
        for path, child in module.named_modules():
            _search(child, path, [], wanted, places)
    for owner in wanted.values():
        if id(owner) not in places:
            raise NotStorable(f"forward reads attributes of a {type(owner).__qualname__} that no module holds itself")
    told = {"requires_grad": reads.requires_grad}
    for table in ("attributes", "computed"):
        told[table] = [[*places[owner], name] for owner, name in getattr(reads, table) if owner in places]
    return told


def _is_exporters(owner):
    """What stands around the model while it is traced."""
    return isinstance(owner, torch.nn.Module) or type(owner).__module__.startswith("lowtide.")


def _search(owner, path, names, wanted, places):
    """Where a module holds the wanted objects."""
    for name, value in vars(owner).items():
        if id(value) in wanted:
            places.setdefault(id(value), [path, [*names, name]])
        if (
            len(names) + 1 < _DEEPEST
            and hasattr(value, "__dict__")
            and not isinstance(value, torch.nn.Module | torch.Tensor | type)
        ):
            _search(value, path, [*names, name], wanted, places)


def _reads_from_json(told, module):
    tables = []
    for table in ("attributes", "computed"):
        found = {}
        for path, names, name in told[table]:
            owner = module.get_submodule(path)
            for step in names:
                owner = vars(owner)[step]
            found[id(owner), name] = owner
        tables.append(found)
    return Reads(*tables, told["requires_grad"])
