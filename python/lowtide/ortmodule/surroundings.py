"""What of PyTorch's modes around a call the engine cannot honour: refused, so that PyTorch runs the call."""

import itertools
import sys

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode

from lowtide.capture import trees
from lowtide.errors import UnsupportedError


class Surrounded(UnsupportedError):
    """No graph of the module, or of a part of it, can run in these surroundings."""


SAVED_TENSORS_NOTICE = (
    "torch.autograd.graph.saved_tensors_hooks (save_on_cpu, or a checkpoint around the module) is active: it sees the "
    "module's inputs and outputs, not the activations inside the engine, which stay in its arena. To need less memory, "
    "see ORTMODULE_MEMORY_OPT_LEVEL."
)


_CONTEXT_PARALLEL = "torch.distributed.tensor.experimental."  # has put its own function in attention's place

# Asked at each call.
_transforms = torch._C._functorch.peek_interpreter_stack
_saved_tensors_hooks = torch._C._autograd._top_saved_tensors_default_hooks


def check_surroundings(module, args, kwargs):
    """UnsupportedError under torch.func's transforms, for forward-mode AD, under context parallel attention, and
    where a mode wants to see each op."""
    if _transforms() is not None:
        raise Surrounded("torch.func transforms (grad, vmap, jvp …) differentiate PyTorch's own operations")
    if forward_ad._current_level >= 0:
        leaves = trees.flatten((args, kwargs))[0]
        tensors = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        for tensor in itertools.chain(tensors, module.parameters(), module.buffers()):
            if forward_ad.unpack_dual(tensor).tangent is not None:
                raise Surrounded("forward-mode AD: an input or parameter is a dual tensor")
    if str(getattr(torch.nn.functional.scaled_dot_product_attention, "__module__", "")).startswith(_CONTEXT_PARALLEL):
        raise Surrounded(
            "context parallel attention (torch.distributed.tensor.experimental.context_parallel) around the call"
        )
    mode = _get_current_dispatch_mode()
    if mode is not None:
        raise Surrounded(f"the dispatch mode {type(mode).__name__} around the call wants to see each operation")


def refuse_draws_in_functions():
    """UnsupportedError in a method of a custom autograd.Function that runs as plain Python: reversible layers draw
    again in backward, in PyTorch, what their forward drew."""
    frame = sys._getframe(1)
    while frame is not None:
        if _may_be_of_a_function(frame.f_code):
            context = frame.f_locals.get(frame.f_code.co_varnames[0])
            if isinstance(context, _Context) and not context._forward_cls.__module__.startswith("torch."):
                name = context._forward_cls.__qualname__
                raise Surrounded(
                    f"{name}.{frame.f_code.co_name} draws random numbers, which its backward may draw again"
                )
        frame = frame.f_back


_Context = torch.autograd.function.BackwardCFunction


def _may_be_of_a_function(code):
    """Asked first: a look at a frame's variables keeps their tensors until it ends."""
    return code.co_name in ("forward", "backward") and code.co_argcount > 0 and code.co_varnames[0] != "self"


def saved_tensors_are_hooked():
    return _saved_tensors_hooks(True) is not None
