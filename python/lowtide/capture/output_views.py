"""Outputs that share memory: the graph returns what they are views of, and PyTorch makes the views anew at each call.
So autograd knows them for views, as in eager, when one of them is changed in place."""

import operator
from dataclasses import dataclass

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false

from lowtide.errors import UnsupportedError

from .op_schemas import arguments_of
from .sizes import NeedsConstants
from .view_or_copy import lies_in

_ITEM = "item"  # in the place of a view: of the list that the one before returns
# Views that take the sizes of another tensor.
_BY_SIZE = {"view_as": "view.default", "reshape_as": "reshape.default", "expand_as": "expand.default"}
_DROPOUTS = {getattr(torch.ops.aten, name).default for name in ("dropout", "feature_dropout", "alpha_dropout")}
_OF_DROPOUT = (1, "p"), (2, "train")


@dataclass(frozen=True)
class OutputView:
    base: int  # among the graph's outputs, or its inputs
    # (view of ATen's, its arguments after the tensor, whether under no_grad): sizes as text over the names of dims.
    steps: tuple
    of_input: bool = False

    def build(self, base, sizes, actual):
        """Of the tensor `base`. `sizes`: KnownSizes; `actual`: the sizes of the call."""
        for name, arguments, no_grad in self.steps:
            values = [_value(argument, sizes, actual) for argument in arguments]
            with torch.set_grad_enabled(torch.is_grad_enabled() and not no_grad):
                base = base[values[0]] if name == _ITEM else _view(name)(base, *values)
        return base

    def is_of(self, outputs, inputs, sizes):
        """Whether it can be of a graph with so many outputs and inputs, whatever a file says."""
        bases = inputs if self.of_input else outputs
        texts = [text for _, arguments, _ in self.steps for text in _texts(arguments)]
        known = all(name == _ITEM or _view(name) is not None for name, _, _ in self.steps)
        is_base = type(self.base) is int and 0 <= self.base < bases and type(self.of_input) is bool
        return is_base and known and all(map(sizes.formula, texts))


def output_gradients(imported, tensors, incoming, actual):
    """[(one of the module's output `tensors`, its gradient)] from {index among the graph's outputs: gradient}. Of one
    that the module does not return, each element's goes to one view that shows it. `actual`: the sizes of the call."""
    places, pairs = dict(zip(imported.outputs, tensors, strict=False)), []  # what forward sets comes after its outputs
    for index, gradient in incoming.items():
        if ("graph", index) in places:
            pairs.append((places["graph", index], gradient))
            continue
        elements = torch.arange(gradient.numel()).view(gradient.shape)
        is_left = torch.ones(gradient.numel(), dtype=torch.bool)
        for number, view in enumerate(imported.views):
            if not view.of_input and view.base == index and ("view", number) in places:
                shown = view.build(elements, imported.sizes, actual)
                times = torch.bincount(shown.flatten(), minlength=gradient.numel()).to(gradient.dtype)
                share = gradient.flatten() * is_left / times.clamp(min=1)
                pairs.append((places["view", number], share[shown]))
                is_left[shown] = False
    return [(tensor, gradient) for tensor, gradient in pairs if tensor.requires_grad]


def _value(argument, sizes, actual):
    if isinstance(argument, str):
        return int(sizes.evaluate(argument, actual))
    return [_value(item, sizes, actual) for item in argument] if isinstance(argument, list | tuple) else argument


def _texts(arguments):
    for argument in arguments:
        if isinstance(argument, str):
            yield argument
        elif isinstance(argument, list | tuple):
            yield from _texts(argument)


def _view(name):
    """The overload of ATen's that returns a view of its first argument, or None."""
    if name == "view.default":
        name = "reshape.default"  # what came of a reshape, which copies an input that lies otherwise
    packet, _, overload = name.partition(".")
    found = getattr(getattr(torch.ops.aten, packet, None), overload, None)
    return found if isinstance(found, torch._ops.OpOverload) and _is_view(found) else None


def _is_view(overload):
    arguments, returns = overload._schema.arguments, overload._schema.returns
    if not arguments or len(returns) != 1 or returns[0].alias_info is None:
        return False
    return arguments[0].alias_info is not None and not any(argument.is_write for argument in arguments)


class SharedOutputs:
    """Of an export: which outputs share memory, and what they are views of."""

    def __init__(self, program, sizes, regions):
        """`regions`: placeholder of an inlined region → (what it stands for, whether that is under no_grad); region →
        the nodes that it returns."""
        self._sizes, self._regions = sizes, regions
        self._no_grad = {node.graph for node, told in regions.items() if node.op == "placeholder" and told[1]}
        self._inputs = {node for node in program.graph.nodes if node.op == "placeholder"}
        self._arguments = set(program.graph_signature.user_inputs)
        modules = (each for each in program.graph_module.modules() if isinstance(each, torch.fx.GraphModule))
        self._written = {memory for module in modules for node in module.graph.nodes for memory in _written_by(node)}

    def find(self, results):
        """{node: (the node that it is a view of, steps as OutputView has them)} of those that share it, and of those
        that are an input itself, or a view of one that is written or, as an argument, may lie otherwise in another
        call. The engine tells which are views of other inputs."""
        paths, found = {}, {}
        for node in dict.fromkeys(results):
            if isinstance(node, torch.fx.Node) and lies_in(node) is not None:
                path = self._path(node)
                paths.setdefault(path[0][0], {})[node] = path
        for first, together in paths.items():
            if first in self._inputs and (first.name in self._arguments or lies_in(first) in self._written):
                found.update(self._views_of(first, together))
            elif first in self._inputs:
                found.update(
                    (node, (first, ())) for node, path in together.items() if not any(step for _, step in path)
                )
            elif len(together) > 1:
                found.update(self._of_one_memory(together))
        return found

    def _of_one_memory(self, paths):
        levels = [[node for node, _ in level] for level in zip(*paths.values(), strict=False)]
        common = [level[0] for level in levels if len(set(level)) == 1]
        return self._views_of([node for node in common if isinstance(node.meta["val"], torch.Tensor)][-1], paths)

    def _views_of(self, base, paths):
        found = {}
        for result, path in paths.items():
            nodes = [node for node, _ in path]
            steps = [(*step, node.graph in self._no_grad) for node, step in path[nodes.index(base) + 1 :] if step]
            try:
                found[result] = base, tuple((name, self._plain(arguments), cut) for name, arguments, cut in steps)
            except (UnsupportedError, NeedsConstants):  # sizes that no formula tells
                continue
        return found

    def _plain(self, arguments):
        if isinstance(arguments, list | tuple):
            return tuple(map(self._plain, arguments))
        value = arguments.meta["val"] if isinstance(arguments, torch.fx.Node) else arguments
        return self._sizes.text(value) if isinstance(value, torch.SymInt) else value

    def _path(self, node):
        """[(node, the step that leads to it, None where it is the same tensor)], from what made the memory."""
        path = []
        while (parent := self._parent(node)) is not None:
            path.append((node, parent[1]))
            node = parent[0]
        return [(node, None), *reversed(path)]

    def _parent(self, node):
        """(what the node is a view of, the step), or None."""
        if node in self._regions:
            return self._regions[node][0], None
        if node.target is operator.getitem:
            source, place = node.args
            if source in self._regions:
                return self._regions[source][place], None
            return (source, (_ITEM, (place,))) if self._parent(source) is not None else None
        source = node.args[0] if isinstance(node.target, torch._ops.OpOverload) and node.args else None
        source = node.kwargs.get("out", source)
        if _is_handed_on(node):
            return source, None
        if not isinstance(source, torch.fx.Node) or lies_in(source) != lies_in(node):
            return None
        if node.target._opname.startswith("detach"):
            return source, ("detach.default", ())
        if _lie_alike(source, node):
            return source, None
        step = _step(node) if _is_view(node.target) and node.target.namespace == "aten" else None
        return step and (source, step)


def _is_handed_on(node):
    """Whether PyTorch returns the tensor that it was given, though the trace has another: dropout of nothing."""
    if node.target not in _DROPOUTS:
        return False
    p, train = (node.args[place] if place < len(node.args) else node.kwargs[name] for place, name in _OF_DROPOUT)
    return p == 0 or train is False


def _step(node):
    """None of a view whose arguments are not sizes alone, or tell of more memory than its operand's."""
    overload, name = node.target, node.target._opname
    if name in _BY_SIZE:
        return _BY_SIZE[name], (tuple(node.meta["val"].shape),)
    if name == "as_strided" or _dtype(node) != node.args[0].meta["val"].dtype:
        return None
    arguments = [*node.args[1:]]
    for argument in overload._schema.arguments[1 + len(arguments) :]:
        value = node.kwargs.get(argument.name, argument.default_value)
        if argument.kwarg_only and value != argument.default_value:
            return None
        if not argument.kwarg_only:
            arguments.append(value)
    return f"{name}.{overload._overloadname}", tuple(arguments)


def _tensors(node):
    value = node.meta.get("val")
    return [part for part in (value if isinstance(value, list | tuple) else [value]) if isinstance(part, torch.Tensor)]


def _dtype(node):
    return next(tensor.dtype for tensor in _tensors(node))


def _written_by(node):
    """Numbers of the memories that a call writes into."""
    if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
        for argument, value in arguments_of(node):
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, torch.fx.Node):
                yield lies_in(value)


def _lie_alike(one, other):
    """Whether two results are the same tensor, where that is known whatever the sizes that data tell."""
    if one is other:
        return True
    a, b = one.meta["val"], other.meta["val"]
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or a.dtype != b.dtype or a.dim() != b.dim():
        return False
    places = zip((*a.shape, *a.stride(), a.storage_offset()), (*b.shape, *b.stride(), b.storage_offset()), strict=True)
    return all(guard_or_false(x == y) for x, y in places)
