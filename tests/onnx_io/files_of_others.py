"""ONNX files that others make, and onnxruntime beside lowtide on them."""

import numpy
import onnx
import torch
from both_ways import run, run_onnx
from onnx import TensorProto, helper, numpy_helper

from lowtide.onnx_io import from_model

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model_of(nodes, inputs, outputs, weights=None, opset=17):
    """`inputs`, `outputs`: name → (type, shape)."""
    infos = [
        [helper.make_tensor_value_info(name, *kind) for name, kind in table.items()] for table in (inputs, outputs)
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "theirs", *infos, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def random(*shape):
    return numpy.random.default_rng(0).standard_normal(shape).astype(numpy.float32)


def ints(*values):
    return numpy.array(values, dtype=numpy.int64)


def tensors_of(imported, given):
    names = [imported.graph.value_name(entry["value"]) for entry in imported.graph.inputs()]
    return [given[name] if name in given else torch.from_numpy(imported.tensors[name].copy()) for name in names]


def check(model, given):
    """onnxruntime and lowtide agree."""
    onnx.checker.check_model(model, full_check=True)
    imported = from_model(model)
    found, expected = run(imported.graph, tensors_of(imported, given)), run_onnx(model, given)
    assert len(found) == len(expected)
    for first, second in zip(found, expected, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)
    return imported
