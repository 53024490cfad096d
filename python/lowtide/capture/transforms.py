"""torch.func's transforms (grad, jvp …) inside of forward: torch.export cannot follow them, and what fails within one
leaves it active. vmap it keeps, see vmap_regions.py; of a graph of Dynamo's see transform_regions.py."""

import torch


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
