"""Graphs as ONNX models, and ONNX models as graphs, through the onnx package.

model = to_model(graph)         ONNX's ops alone, where the graph has only ops with a definition in them
model = to_model(graph, own_ops=True)   what ONNX lacks stays one node each, in the domain "lowtide"
imported = from_model(model)    imported.graph; a file: load(path)
"""

import onnx

from .definitions import DEFINITIONS
from .exact_ops import EXACT
from .reader import Imported, from_model
from .writer import DOMAIN, METADATA, OPSET, Writer

__all__ = ["DOMAIN", "METADATA", "OPSET", "Imported", "from_model", "is_standard", "load", "save", "to_model"]


def to_model(graph, own_ops=False, tensors=None):
    """`tensors`: name of a graph input → array, for those that the file shall hold the values of."""
    writer = Writer(graph, own_ops, tensors)
    for view in writer.views():
        exact = EXACT.get(view.op)
        if exact is not None and exact(writer, view) is not False:
            continue
        definition = None if own_ops else DEFINITIONS.get(view.op)
        if definition is not None:
            definition(writer, view)
        else:
            writer.own_node(view)
    return writer.model()


def is_standard(model):
    """Whether any ONNX runtime of its opset can run it."""
    return all(opset.domain in ("", "ai.onnx") for opset in model.opset_import)


def save(graph, path, own_ops=False, tensors=None):
    """Writes the model, checked by onnx: with shape inference if it is standard."""
    model = to_model(graph, own_ops, tensors)
    onnx.checker.check_model(model, full_check=is_standard(model))
    onnx.save(model, path)
    return model


def load(path):
    """An Imported from a file; InvalidArgument says what is wrong with it."""
    from .reader import read_file

    return from_model(read_file(path))
