"""Where in the training graph a wrong value is made: the steps since the last right ones, and which of them computes
wrongly. Each step runs again alone, on what the engine gave it, by the reference kernels in float64."""

import re
from dataclasses import dataclass

import torch

from lowtide._lowtide import Graph, Session
from lowtide.errors import Error

from .captured_graph import TORCH_DTYPES
from .compare import GROWTH
from .distance import ROUNDING, distance

_FLOAT = re.compile(r"(?<=: |\w=)(f32|bf16|f16)\b")  # of a value or an attribute
_OUTPUT = re.compile(r"\s*%([^\s:]+):.* = ([\w:.]+)")


@dataclass
class EngineOp:
    """A node of the training graph."""

    op: str
    outputs: list  # names
    inputs: list
    origin: str  # "gradient of: transformer.h.7.mlp.act  activations.py:66"


@dataclass
class Region:
    ops: list  # EngineOps from right values to the wrong one, views left out
    faulty: EngineOp | None  # the one that computes wrongly; None: each is right by itself, or cannot be run alone
    error: float  # of `faulty`, relative
    alone: bool  # every op could be run by itself
    graph: Graph  # of `faulty`, else of the region: the right values are its inputs

    @property
    def inputs(self):
        return [self.graph.value_name(entry["value"]) for entry in self.graph.inputs()]


def find_region(step, name, right, symbols):
    """`step`: EngineStep; `name`: of the wrong value; `right`: names of values that are; `symbols`: sizes."""
    training = step.session.training_graph()
    number = training.find_value
    cuts = [cut for cut in map(number, right) if cut is not None]
    region = training.excerpt(cuts, [number(name)], symbols)
    seen = [value for value in map(number, step.values) if value is not None]
    ops, faulty, error, alone = [], None, 0.0, True
    for op in _ops(region):
        if op.op in _VIEWS:
            continue
        outputs = [number(each) for each in op.outputs]
        graph = training.excerpt([value for value in seen if value not in outputs], outputs, symbols)
        found = _error_alone(graph, step)
        ops.append(op)
        alone = alone and found is not None
        if faulty is None and found:
            faulty, error, region = op, found, graph
    return Region(ops, faulty, error, alone, region)


_VIEWS = ("Reshape", "Transpose", "Slice", "Expand", "Unsqueeze", "Squeeze", "Identity")


def _ops(graph):
    for node in graph.nodes():
        if not node["inputs"]:
            continue  # a constant
        names = [
            [graph.value_name(value) for value in node[side] if value is not None] for side in ("outputs", "inputs")
        ]
        yield EngineOp(node["target"] or node["op"], *names, node["origin"])


def _error_alone(graph, step):
    """How wrong the engine's results of this part are; 0 for rounding, None for what does not run alone."""
    exact = _run_alone(graph, step, wide=True)
    if exact is None:
        return None
    rounded = None
    worst = 0.0
    for place, entry in enumerate(graph.outputs()):
        engine = step.values.get(graph.value_name(entry["value"]))
        if engine is None:
            continue
        error = distance(engine, exact[place])
        if error <= ROUNDING.get(engine.dtype, 0.0):
            continue
        rounded = rounded or _run_alone(graph, step, wide=False)
        if rounded is None or error > GROWTH * distance(rounded[place], exact[place]):
            worst = max(worst, error)
    return worst


def _run_alone(graph, step, wide):
    text = graph.text()
    try:
        alone = Graph.parse(_FLOAT.sub("f64", text) if wide else text)
        session = Session(alone, training=False, disabled_kernels=["cpu", "blas", "aten"])
        inputs = []
        for name, entry in zip(session.input_names, alone.inputs(), strict=True):
            dtype, shape = alone.value_type(entry["value"])
            tensor = step.values.get(name, step.given.get(name))
            if tensor is None:  # an incoming gradient that the caller did not send
                tensor = torch.zeros(shape)
            inputs.append(tensor.to(TORCH_DTYPES[dtype]).contiguous())
        outputs, _ = session.forward(inputs, 0, False)
    except Error:  # calls of PyTorch, ops without a kernel for float64
        return None
    return [inputs[each[0]].as_strided(*each[1:]) if isinstance(each, tuple) else each for each in outputs]
