"""What around a module no export can express: refused before it, or masked while it runs."""

import contextlib

import torch

from lowtide.errors import UnsupportedData, UnsupportedDevice, UnsupportedError, UnsupportedModel
from lowtide.guards.values import PLAIN_TENSORS

_MOST_NAMES = 3  # in a message


def refuse_backward_hooks(module):
    """Module-level backward hooks do not survive an export: their gradients would be silently other ones."""
    for path, child in hooked_modules(module):
        raise UnsupportedModel(f"module '{path}' ({type(child).__name__}) has a backward hook")
    global_hooks = torch.nn.modules.module
    if global_hooks._global_backward_hooks or global_hooks._global_backward_pre_hooks:
        raise UnsupportedModel("a global module backward hook is registered")


def hooked_modules(module):
    """[(path, module)] of those in it that have a backward hook: pieces may run the others."""
    return [
        (path, child) for path, child in module.named_modules() if child._backward_hooks or child._backward_pre_hooks
    ]


def refuse_state(module):
    """Parameters and buffers that the engine cannot take, and modules whose code is not Python's."""
    if scripted := [path for path, child in module.named_modules() if isinstance(child, torch.jit.ScriptModule)]:
        raise UnsupportedError(f"module '{scripted[0]}' is a torch.jit.ScriptModule")
    by_device = tensors_by_device(module)
    if by_device.keys() - {"cpu"}:
        raise UnsupportedDevice(where_tensors_are(by_device))
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if torch.nn.parameter.is_lazy(tensor):
            raise UnsupportedModel(f"parameter '{name}' of a lazy module has no shape yet")
        if type(tensor) not in PLAIN_TENSORS:
            raise UnsupportedModel(f"parameter '{name}' is a tensor subclass, {type(tensor).__name__}")
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        if tensor.layout is not torch.strided and (is_parameter or tensor.requires_grad):
            kind = "parameter" if is_parameter else "buffer"
            raise UnsupportedData(f"{kind} '{name}' is a tensor of layout {tensor.layout}, expected a dense one")


def refuse_sparse(value):
    """Of what a node of a trace gives: UnsupportedError where a tensor in it is not a dense one."""
    for part in value if isinstance(value, list | tuple) else (value,):
        if isinstance(part, torch.Tensor) and part.layout is not torch.strided:
            raise UnsupportedError(f"forward computes with a tensor of layout {part.layout}")


def refuse_constant(tensor):
    """UnsupportedError where a program cannot hold it: not dense, or without memory of its own."""
    refuse_sparse(tensor)
    try:
        tensor.data_ptr()
    except RuntimeError:  # what a transform wraps, behind its end: the function of torch.func.vjp is called there
        raise UnsupportedError("forward reads what a transform of torch.func has computed, behind its end") from None


def tensors_by_device(module):
    """{device: names of parameters and buffers}."""
    found = {}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        found.setdefault(str(tensor.device), []).append(name)
    return found


def where_tensors_are(by_device):
    """In words, of a module that is not on the CPU alone."""
    parts = [
        f"{_some(names)} on {device}" for device, names in sorted(by_device.items(), key=lambda each: each[0] == "cpu")
    ]
    return f"expected parameters and buffers on the CPU, found {'; '.join(parts)}"


def _some(names):
    shown = ", ".join(f"'{name}'" for name in names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"


def saved_tensors_hooks_masked():
    """A context in which hooks of the user's on saved tensors (save_on_cpu, a checkpoint around the call) see nothing:
    a checkpoint counts what is saved, and an export saves more than the same call does later."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_same_tensor, _same_tensor)


def _same_tensor(tensor):
    return tensor
