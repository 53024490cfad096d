"""Runs graphs in lowtide and ONNX models in onnxruntime on the same tensors."""

import numpy
import onnx
import onnxruntime
import torch

from lowtide._lowtide import Graph, Session
from lowtide.onnx_io import from_model, to_model

TORCH = {"f32": torch.float32, "f64": torch.float64, "i64": torch.int64, "i32": torch.int32, "bool": torch.bool}


def graph_of(inputs, nodes):
    """A graph from its inputs' list and its nodes; it returns what the last node gives."""
    results = nodes.strip().splitlines()[-1].partition("=")[0].split(": ")
    names = [part.split()[-1].split("%")[-1] for part in results[:-1]]
    returned = ", ".join(f"%{name} output" for name in names if name != "_")
    return Graph.parse(f"graph @g({inputs}) {{\n{nodes}\n  return {returned}\n}}\n")


def tensors_for(graph, sizes, seed=0, high=3):
    """Random tensors for the graph's inputs: floats in (-2, 2), integers in [0, high)."""
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for entry in graph.inputs():
        dtype, shape = graph.value_type(entry["value"])
        shape = [eval(str(size), dict(sizes)) for size in shape]
        if dtype in ("f32", "f64"):
            tensors.append(torch.rand(shape, generator=generator, dtype=TORCH[dtype]) * 4 - 2)
        else:
            tensors.append(
                torch.randint(0, 2 if dtype == "bool" else high, shape, generator=generator).to(TORCH[dtype])
            )
    return tensors


def run(graph, tensors):
    """The outputs of a forward graph in lowtide."""
    session = Session(graph, training=False)
    outputs, _ = session.forward(tensors, 1, False)
    return [output if isinstance(output, torch.Tensor) else _view(output, tensors) for output in outputs]


def _view(output, tensors):
    index, sizes, strides, offset, _ = output
    base = tensors[index]
    return base.as_strided(sizes, strides, base.storage_offset() + offset)


def run_onnx(model, tensors):
    """`tensors`: name → tensor, or a list in the order of the model's inputs."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    # The model's own nodes: this runtime's fusions would be tested too.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    if not isinstance(tensors, dict):
        tensors = dict(zip(names, tensors, strict=True))
    feed = {name: tensors[name].detach().numpy() for name in names}
    return [torch.from_numpy(numpy.asarray(output)) for output in session.run(None, feed)]


def round_trip(graph, own_ops):
    model = to_model(graph, own_ops=own_ops)
    onnx.checker.check_model(model, full_check=not own_ops)
    return model, from_model(onnx.load_model_from_string(model.SerializeToString())).graph
