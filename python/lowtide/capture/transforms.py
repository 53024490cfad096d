"""torch.func's transforms (grad, jvp …) inside of forward: torch.export cannot follow them, and what fails within one
leaves it active. vmap it keeps, see vmap_regions.py."""

import torch

from lowtide.errors import UnsupportedError


def refuse_transforms(graph):
    """UnsupportedError where Dynamo has left a transform other than vmap in a graph."""
    names = (getattr(node.target, "__name__", "") for node in graph.nodes if node.op == "call_function")
    if any(name.endswith("_increment_nesting") and not name.startswith("_vmap") for name in names):
        raise UnsupportedError("forward calls transforms of torch.func, which differentiate PyTorch's own operations")


def undoing_transforms(function, /, *args, **kwargs):
    """function(*args, **kwargs), after which no transform is active that was not before, also where it ends early, and
    gradients are enabled as before."""
    depth, with_gradients = torch._C._functorch.get_dynamic_layer_stack_depth(), torch.is_grad_enabled()
    try:
        return function(*args, **kwargs)
    except BaseException:
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        torch.set_grad_enabled(with_gradients)
        raise
