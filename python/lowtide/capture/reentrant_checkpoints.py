"""Reentrant checkpoints: what they run is of the graph, and what they do to gradients is as in PyTorch."""

import torch

from lowtide.errors import UnsupportedError


class ReentrantCheckpoints:
    """Those of one trace. PyTorch runs their functions under no_grad, and again in backward: tensors that leave one
    other than as its outputs (router logits that a hook keeps) have no gradient."""

    def __init__(self):
        self._inside = set()  # autograd's nodes of what they ran
        self._given = {}  # node of an output → nodes of the arguments that it is computed from

    def run(self, function, arguments):
        """What to recompute is the planner's choice. With no tensor among its arguments that takes a gradient PyTorch
        gives none to the function's parameters either, and warns."""
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        if not torch.is_grad_enabled():
            return function(*arguments)
        if not any(tensor.requires_grad for tensor in tensors):
            torch.utils.checkpoint.check_backward_validity(tensors)
            with torch.no_grad():
                return function(*arguments)
        given = {tensor.grad_fn for tensor in tensors} - {None}  # before the function writes into them
        results = function(*arguments)
        listed = results if isinstance(results, tuple) else (results,)
        made = {tensor.grad_fn for tensor in listed if isinstance(tensor, torch.Tensor)} - {None} - given
        self._inside |= set(_nodes_behind(made, dict.fromkeys(given, ()))) - given
        self._given |= dict.fromkeys(made, given)
        return results

    def refuse_escapes(self, outputs):
        """UnsupportedError where `outputs` are computed from what left a checkpoint beside its outputs."""
        inside, given = self._inside, self._given
        self._inside, self._given = set(), {}  # else they keep the trace's graph
        for node in _nodes_behind({tensor.grad_fn for tensor in outputs} - {None}, given) if inside else ():
            if node in inside and node not in given:
                raise UnsupportedError(
                    "forward uses a tensor that was made inside of a reentrant checkpoint and is none of its outputs:"
                    " in PyTorch it has no gradient (use_reentrant=False gives it one)"
                )


def _nodes_behind(nodes, instead):
    """`nodes` and those that their gradients go to, no leaves. Behind those of `instead` are the ones named there."""
    pending, seen = list(nodes), set(nodes)
    while pending:
        node = pending.pop()
        yield node
        behind = instead[node] if node in instead else [following for following, _ in node.next_functions]
        found = {each for each in behind if each is not None and (each in instead or each.next_functions)} - seen
        seen |= found
        pending.extend(found)
