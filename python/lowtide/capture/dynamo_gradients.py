"""torch.autograd.grad that Dynamo leaves behind a graph. Of a graph that gives both what it differentiates and what
by, autograd has to see the way from one to the other: in the engine both are outputs of one function."""


def differentiates_within(graph_module):
    """Whether autograd's grad follows the graph, and one of its outputs depends on another."""
    reason = getattr(graph_module, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break or "autograd.grad" not in str(reason.reason):
        return False
    (output,) = graph_module.graph.find_nodes(op="output")
    results = {result for result in output.all_input_nodes if _takes_gradient(result)}
    return any(results & _before(result) for result in results)


def _takes_gradient(node):
    return node.op != "placeholder" and getattr(node.meta.get("example_value"), "requires_grad", False)


def _before(node):
    """All that it depends on."""
    found, pending = set(), [node]
    while pending:
        operands = set(pending.pop().all_input_nodes) - found
        found |= operands
        pending.extend(operands)
    return found
