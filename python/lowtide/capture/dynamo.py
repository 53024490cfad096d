"""A graph that torch.compile's Dynamo hands to a backend → a module that torch.export takes, for capture.

Dynamo lifts parameters and buffers to inputs, and passes each free size once more as an int, and floats as tensors;
guards are its own.
"""

import keyword
import re

import torch
from torch.fx.traceback import preserve_node_meta

from .dynamo_bodies import with_bodies
from .dynamo_counts import Counts
from .dynamo_data import data_as_calls
from .dynamo_gradients import differentiates_within
from .dynamo_numbers import refuse_unknown_constants
from .dynamo_writes import Writes
from .facts import Facts
from .hooked import hooks_as_functions
from .transform_regions import Transformed

_PREFIX = re.compile(r"^l_(self_)?|(?<![a-z])(modules|parameters|buffers)_")


class DynamoGraph(torch.nn.Module):
    """`graph_module` as Dynamo made it, whose placeholders tell which sizes are free.

    Called with the graph's inputs but for those sizes that `arguments` leaves out.
    """

    def __init__(self, graph_module):
        super().__init__()
        refuse_unknown_constants(graph_module)
        self.is_differentiated_within = differentiates_within(graph_module)  # by whoever calls
        graph_module = with_bodies(graph_module)
        placeholders = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
        example_inputs = [node.meta.get("example_value") for node in placeholders]
        self._taken, carried = _carried_sizes(example_inputs)
        self._sizes = frozenset(place for place in self._taken if _is_size(example_inputs[place]))
        self._numbers = frozenset(place for place, node in enumerate(placeholders) if _is_number(node))
        self.writes = Writes.of(graph_module, example_inputs)  # that whoever calls must make
        carried = {**carried, **{place: (place, 0) for place in self._sizes}}
        self.counts = Counts.of(graph_module, example_inputs)  # that whoever calls must return
        graph = _rewritten(graph_module, placeholders, carried, self.writes.places, self.counts.outputs)
        self.graph_module = torch.fx.GraphModule(graph_module, graph)
        self.facts = _facts([example_inputs[place] for place in self._taken if place not in self._numbers])
        self.training = graph_module.training

    def arguments(self, inputs):
        """Those of the graph's inputs that forward takes: numbers as Python's, a size that no other input has as one of
        a tensor without elements."""
        if len(self._taken) == len(inputs) and not self._numbers and not self._sizes:
            return inputs
        return tuple(map(self._argument, self._taken, (inputs[place] for place in self._taken)))

    def _argument(self, place, value):
        if place in self._sizes:
            return torch.empty(value, 0)
        return value.item() if place in self._numbers else value

    @property
    def forward(self):
        """With the signature of the graph's own."""
        return self._interpreted if torch.compiler.is_exporting() else self.graph_module.forward

    def _interpreted(self, *args):
        """Node by node, so that what is exported knows the user's lines and modules."""
        with preserve_node_meta():
            return Transformed(self.graph_module).run(*args)


def _carried_sizes(example_inputs):
    """(places of the inputs that are taken, {place of a size: (place of the tensor, dim) that carries it})."""
    carriers = {}
    for place, example in enumerate(example_inputs):
        if isinstance(example, torch.Tensor):
            for dim, size in enumerate(example.shape):
                if (symbol := _symbol(size)) is not None:
                    carriers.setdefault(symbol, (place, dim))
    carried = {
        place: carriers[_symbol(example)]
        for place, example in enumerate(example_inputs)
        if isinstance(example, torch.SymInt) and _symbol(example) in carriers
    }
    return [place for place in range(len(example_inputs)) if place not in carried], carried


def _is_size(example):
    """Of an input: whether it is a free int that Dynamo's guards keep from being negative."""
    if (symbol := _symbol(example)) is None:
        return False
    lower = example.node.shape_env.var_to_range[symbol].lower if symbol.is_Symbol else -1
    return lower >= 0


def _symbol(size):
    """Of a free size, else None."""
    return size.node.expr if isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None else None


def _function(forward_graph, backward_graph, non_differentiable_idx, dirty_idx=(), **_):
    """A custom autograd.Function again, of the two graphs that Dynamo made of it: capture keeps its backward."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *args):
            outputs, saved = forward_graph(*args)
            listed = outputs if isinstance(outputs, tuple | list) else (outputs,)
            ctx.mark_non_differentiable(*(listed[place] for place in non_differentiable_idx))
            ctx.mark_dirty(*(listed[place] for place in dirty_idx))
            ctx.is_tensor = [isinstance(value, torch.Tensor) for value in saved]
            ctx.others = [value for value in saved if not isinstance(value, torch.Tensor)]
            ctx.save_for_backward(*(value for value in saved if isinstance(value, torch.Tensor)))
            return tuple(outputs) if isinstance(outputs, list) else outputs

        @staticmethod
        def backward(ctx, *gradients):
            tensors, others = iter(ctx.saved_tensors), iter(ctx.others)
            saved = [next(tensors if is_tensor else others) for is_tensor in ctx.is_tensor]
            return backward_graph(*gradients, *saved)

    def apply(*args):
        return Function.apply(*args)

    return apply


def _enter_autocast(*arguments):
    mode = torch.autocast(*arguments)
    mode.__enter__()
    return mode


def _enter_inference_mode(is_on):
    mode = torch.inference_mode(is_on)
    mode.__enter__()
    return mode


def _exit(mode):
    mode.__exit__(None, None, None)


# The functions of Dynamo's graphs only leave a note in a trace, or none: types would be those without autocast.
_MODES = {
    torch.amp.autocast_mode._enter_autocast: _enter_autocast,
    torch.amp.autocast_mode._exit_autocast: _exit,
    torch.autograd.grad_mode._enter_inference_mode: _enter_inference_mode,
    torch.autograd.grad_mode._exit_inference_mode: _exit,
}


def _is_number(node):
    """Whether it is a number to Python, which Dynamo passes as a tensor: nothing but its item is asked for."""
    return len(node.users) > 0 and all(user.op == "call_method" and user.target == "item" for user in node.users)


def _rewritten(graph_module, placeholders, carried, written, counted):
    """The graph in which sizes that a tensor carries are asked of it (`carried`: place of the size → (place of the
    tensor, dim); a tensor in the size's own place is a new one), and inputs have the names of what they were. Inputs in
    the places `written` are copied first, and the copies are further outputs. Outputs in the places `counted` are
    None."""
    graph = torch.fx.Graph()
    copies, names = {}, set()
    for place, node in enumerate(placeholders):
        if carried.get(place, (place,))[0] == place:
            copies[node] = copy = graph.placeholder(_name(node.target, names))
            copy.meta = dict(node.meta)
    tensors = {place: copies[placeholders[tensor]] for place, (tensor, _) in carried.items()}
    for place, (_, dim) in carried.items():
        copies[placeholders[place]] = graph.call_function(torch.ops.aten.sym_size.int, (tensors[place], dim))
    for place in written:
        copies[placeholders[place]] = graph.call_method("clone", (copies[placeholders[place]],))
    for node in filter(_is_number, placeholders):
        copies.update(dict.fromkeys(node.users, copies[node]))
    for node in graph_module.graph.nodes:
        if node in copies:
            continue
        if node.op == "output":
            own = (None if place in counted else value for place, value in enumerate(node.args[0]))
            outputs = (*own, *(placeholders[place] for place in written))
            copies[node] = graph.output(torch.fx.map_arg(outputs, copies.__getitem__))
            continue
        copies[node] = copy = graph.node_copy(node, copies.__getitem__)
        if node.target is torch.ops.higher_order.autograd_function_apply:
            forward, backward = (getattr(graph_module, part.target) for part in node.args[:2])
            copy.target, copy.args = _function(forward, backward, **node.kwargs), copy.args[2:]
            copy.kwargs = {}
        elif node.target in _MODES:
            copy.target = _MODES[node.target]
    data_as_calls(graph)
    hooks_as_functions(graph_module, graph)
    graph.eliminate_dead_code(is_impure_node=lambda node: node.op != "get_attr")
    return graph


def _name(target, names):
    """ "L_self_modules_fc_parameters_weight_" → "fc_weight"."""
    name = _PREFIX.sub("", str(target).lower()).strip("_") or "input"
    name = f"input_{name}" if name[0].isdigit() or name == "self" else name
    while name in names or keyword.iskeyword(name):
        name += "_"
    names.add(name)
    return name


def _facts(examples):
    """Dynamo has decided which sizes are free; the others may be in its graph as numbers."""
    shapes = [
        example.shape if isinstance(example, torch.Tensor) else (example, 0)
        for example in examples
        if isinstance(example, torch.Tensor) or _is_size(example)
    ]
    dims = {(index, dim): size for index, shape in enumerate(shapes) for dim, size in enumerate(shape)}
    free = frozenset(dim for dim, size in dims.items() if _symbol(size) is not None)
    return Facts(moving=free, fixed=frozenset(dims) - free, exact=True)
