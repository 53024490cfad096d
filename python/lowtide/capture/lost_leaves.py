"""`x = x.detach().requires_grad_()` in forward: a loss of it alone has a backward, though nobody sees its gradients."""


def of_lost_leaves(outputs, known):
    """Places of the `outputs` of a trace that have gradients through leaves that are not among the tensors `known`."""
    known = {id(tensor) for tensor in known}
    ends = [output.grad_fn or output for output in outputs if output.requires_grad]
    if not _lead_to_others(ends, known):
        return frozenset()
    places = (place for place, output in enumerate(outputs) if output.requires_grad)
    return frozenset(place for place in places if _lead_to_others([outputs[place].grad_fn or outputs[place]], known))


def _lead_to_others(ends, known):
    seen, pending = set(ends), list(ends)
    while pending:
        node = pending.pop()
        leaf = node if not hasattr(node, "next_functions") else getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in known:
            return True
        for following, _ in getattr(node, "next_functions", ()):
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)
    return False
