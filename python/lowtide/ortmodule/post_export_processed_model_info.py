"""One graph, ready to run: what the managers need of it, and users of the graph transition manager."""

import functools
import importlib.util
from collections import OrderedDict

import torch

from lowtide._lowtide import Graph, GraphInputs
from lowtide.capture import trees
from lowtide.errors import InvalidArgument, UnsupportedDevice, UnsupportedError
from lowtide.guards.held import with_held

from .save_onnx import constants_of


class PostExportProcessedModelInfo:
    """The graph's inputs in order, the live tensors for them in a call, and the way back to the user's outputs.

    The names of fields are ORTModule's. A graph input is a parameter, a buffer, a constant, or a tensor among the
    arguments ("user defined").
    """

    def __init__(self, module, captured, agent, guards, arguments, with_gradients, call):
        self.captured, self.agent = captured, agent
        self._arguments, self._guards, self._sizes, self._strings = arguments, guards, call.sizes(), ()
        sources = captured.sources
        self.onnx_graph_input_names = [source.name for source in sources]
        self.onnx_graph_input_names_require_grad = [source.name for source in sources if source.requires_grad]
        self.onnx_graph_input_names_user_defined = [source.name for source in sources if source.kind == "input"]
        self.onnx_graph_input_names_require_grad_user_defined = [
            source.name for source in sources if source.kind == "input" and source.requires_grad
        ]
        # {"x": {0: "x_dim0"}} of the arguments' free sizes; two that the model needs equal have one name.
        self.onnx_graph_input_dynamic_axes_map = captured.imported.sizes.dynamic_axes()
        self.module_forward_output_schema = captured.exported.output_structure
        paths = [keys for keys, _ in trees.flatten_with_keys((call.args, call.kwargs))]
        paths = [keys for keys, leaf in zip(paths, call.leaves, strict=True) if isinstance(leaf, torch.Tensor)]
        self._numbers = call.number_indices()
        held = tuple(call.held(module.forward).values())
        self._given = (lambda kwargs: with_held(kwargs, held, module)) if held else dict
        self.data_accessor = [
            _accessor(paths[source.index], self._given) if source.kind == "input" else None for source in sources
        ]

        owners = [_owner(module, source) for source in sources]
        self._live = [_getter(source, owner) for source, owner in zip(sources, owners, strict=True)]
        wants_gradient = [source.requires_grad if source.used and with_gradients else None for source in sources]
        places = [_place(source, owner, self._guards) for source, owner in zip(sources, owners, strict=True)]
        written = agent.session.updated_inputs
        unused = [index for index, source in enumerate(sources) if not source.used and index not in written]
        self.inputs = GraphInputs(self._guards.native, places, wants_gradient, written, unused)

    @property
    def buffer_for_ort_runs(self):
        """The live tensors of parameters, buffers and constants by the names of graph inputs."""
        pairs = zip(self.captured.sources, self._live, strict=True)
        return OrderedDict((source.name, live()) for source, live in pairs if live is not None)

    @functools.cached_property
    def _post_export_processed_model(self):
        """The forward graph before gradients as an onnx.ModelProto, converted when it is first asked for."""
        if importlib.util.find_spec("onnx") is None:
            raise UnsupportedError("the processed model needs the onnx package: pip install lowtide[onnx]")
        from lowtide import onnx_io  # the onnx package is optional

        return onnx_io.to_model(Graph.parse(self.agent.session.lowered_text()), tensors=constants_of(self.captured))

    def construct_inputs(self, args, kwargs, constant_as_tensor=True, device=None):
        """The live tensors of the graph's inputs, in order. Numbers among them (docs/transitions.md) are 0-d tensors of
        f64 or i64, or what they are without `constant_as_tensor`; other plain values are part of the graph."""
        if device is not None and torch.device(device).type != "cpu":
            raise UnsupportedDevice(f"expected device cpu, found {device}: lowtide's graphs run on the CPU")
        inputs = list(self.bind(args, kwargs)[1])
        if not constant_as_tensor:
            for index, source in enumerate(self.captured.sources):
                if source.kind == "input" and source.index in self._numbers:
                    inputs[index] = inputs[index].item()
        return inputs

    def bind(self, args, kwargs):
        """(ArgumentTensors, BoundInputs) of a call that this graph is right for."""
        seen = self._arguments.match(tuple(args), self._given(kwargs))
        if seen is None or not self._guards.hold() or not self._guards.take(seen.tensors):
            raise InvalidArgument("these arguments, or the module as it is now, need another graph")
        self._sizes, self._strings = seen.sizes(), seen.strings
        return seen, self.inputs.bind(seen)[1]

    def restore_outputs(self, user_outputs):
        """The module's output, in the structure that its forward returns, from the tensors in it; sizes among the
        outputs, and strings of any value, are those of the last `construct_inputs`."""
        return self.captured.rebuild(list(user_outputs), self._sizes, self._strings)


def _accessor(path, given):
    """A function (args, kwargs) → the argument's tensor at `path`."""
    return lambda args, kwargs: trees.at((args, given(kwargs)), path)


def _owner(module, source):
    """What holds the tensor of a parameter, a buffer, or a constant that is an attribute."""
    if source.kind == "input" or not source.paths:
        return None
    path = source.paths[0].rpartition(".")[0]
    if source.kind != "constant":
        return module.get_submodule(path)
    for name in filter(None, path.split(".")):
        module = getattr(module, name)
    return module


def _table(source, owner):
    return owner._parameters if source.kind == "param" else owner._buffers


def _name(source):
    return source.paths[0].rpartition(".")[2]


def _place(source, owner, guards):
    """Of a graph input, as lowtide._lowtide.GraphInputs takes it."""
    if source.kind == "input":
        return "input", source.index
    if source.shard is not None:
        live = _getter(source, owner)
        return "made", lambda: source.shard.local(live())
    number = guards.place_of(source.tensor) if owner is None else guards.tensor(owner, _name(source))
    return ("tensor", source.tensor) if number is None else ("guard", number)


def _getter(source, owner):
    """A function to the live tensor; None for an argument."""
    if source.kind == "input":
        return None
    if owner is None:
        return lambda: source.tensor
    if source.kind == "constant":
        return lambda: getattr(owner, _name(source))
    return lambda: _table(source, owner)[_name(source)]
