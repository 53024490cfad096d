"""Numbers that Dynamo does not know and takes for constants: of `float(np.maximum(self.tau * np.exp(-rate), 0.5))` with
a tau that changes it has an example, which is nan, and writes that into the graph and into the attribute."""

import math

import torch

from lowtide.errors import UnsupportedError


def refuse_unknown_constants(graph_module):
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.sym_float):
        (number,) = node.args
        if isinstance(number, float) and math.isnan(number):
            raise UnsupportedError(
                "torch.compile takes what forward computes by NumPy of a number that changes for a constant: "
                "compute it with Python's math"
            )
