"""Two exports that must be the same program: capture/numbers.py."""

from types import SimpleNamespace

import torch

from lowtide.capture.numbers import difference


def exported(held):
    """With a plain value among the graph's attributes, as the exporter keeps the structure of a call there."""
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    graph = program.graph_module.graph
    program.graph_module.held = held
    output = next(node for node in graph.nodes if node.op == "output")
    with graph.inserting_before(output):
        node = graph.create_node("get_attr", "held")
    output.args = ((*output.args[0], node),)
    return SimpleNamespace(
        program=program,
        names=["x"],
        functions=[],
        output_structure=None,
        output_leaves=[],
        output_is_tensor=[],
    )


def test_plain_values_among_a_graphs_attributes_are_compared():
    assert difference(exported((1, 2)), exported((1, 2)), {}) is None
    assert difference(exported((1, 2)), exported((1, 3)), {}) is not None
