"""What around a module no export can express: refused before it, or masked while it runs."""

import contextlib

import torch

from lowtide.errors import UnsupportedDevice, UnsupportedModel
from lowtide.guards.values import PLAIN_TENSORS


def refuse_backward_hooks(module):
    """Module-level backward hooks do not survive an export: their gradients would be silently other ones."""
    for path, child in module.named_modules():
        if child._backward_hooks or child._backward_pre_hooks:
            raise UnsupportedModel(f"module '{path}' ({type(child).__name__}) has a backward hook")
    global_hooks = torch.nn.modules.module
    if global_hooks._global_backward_hooks or global_hooks._global_backward_pre_hooks:
        raise UnsupportedModel("a global module backward hook is registered")


def refuse_state(module):
    """Parameters and buffers that the engine cannot take."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if torch.nn.parameter.is_lazy(tensor):
            raise UnsupportedModel(f"parameter '{name}' of a lazy module has no shape yet")
        if type(tensor) not in PLAIN_TENSORS:
            raise UnsupportedModel(f"parameter '{name}' is a tensor subclass, {type(tensor).__name__}")
        if tensor.device.type != "cpu":
            raise UnsupportedDevice(f"expected parameters on the CPU, found '{name}' on {tensor.device}")


def saved_tensors_hooks_masked():
    """A context in which hooks of the user's on saved tensors (save_on_cpu, a checkpoint around the call) see nothing:
    a checkpoint counts what is saved, and an export saves more than the same call does later."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_same_tensor, _same_tensor)


def _same_tensor(tensor):
    return tensor
