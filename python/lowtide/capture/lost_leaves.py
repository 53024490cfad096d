"""Outputs with gradients that nobody sees: `x = x.detach().requires_grad_()` in forward, and views of a leaf made under
no_grad, which ask for a gradient and lead to none. A loss of them alone has a backward."""


def of_lost_leaves(outputs, known):
    """Places of the `outputs` of a trace that have gradients through leaves that are not among the tensors `known`, or
    through none."""
    known = {id(tensor) for tensor in known}
    ends = [output.grad_fn or output for output in outputs if output.requires_grad]
    has_others = any(id(leaf) not in known for leaf in _leaves(ends))
    return frozenset(
        place
        for place, output in enumerate(outputs)
        if output.requires_grad and _is_lost(output.grad_fn or output, known, has_others)
    )


def _is_lost(end, known, has_others):
    leaves = _leaves([end])
    if (first := next(leaves, None)) is None:
        return True
    return has_others and (id(first) not in known or any(id(leaf) not in known for leaf in leaves))


def _leaves(ends):
    seen, pending = set(ends), list(ends)
    while pending:
        node = pending.pop()
        leaf = node if not hasattr(node, "next_functions") else getattr(node, "variable", None)
        if leaf is not None:
            yield leaf
        for following, _ in getattr(node, "next_functions", ()):
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)
