"""The tensors of a call and of its module, and what stands for them in a trace."""

import torch

from lowtide.guards.questions import named_tensors


class CallTensors:
    def __init__(self, module, call):
        """Before the trace."""
        self._names, self._arguments = call.names(module.forward), call.tensors
        self._of_module = named_tensors(module)

    def tell(self, given, tensors, module):
        """To a guards.questions.Given. `tensors`: what stands for the arguments; `module`: holds what stands for its
        own."""
        for index, (name, *pair) in enumerate(zip(self._names, tensors, self._arguments, strict=True)):
            given.add(*pair, "argument", index, f"argument `{name}`")
        stand_ins = named_tensors(module)
        for path in self._of_module.keys() & stand_ins.keys():
            given.add(stand_ins[path], self._of_module[path], "tensor", path, f"'{path}'")

    def numbers(self, module):
        """(what stands for it, a buffer of the module's that holds one whole number)."""
        stand_ins = named_tensors(module)
        return [(stand_ins[path], self._of_module[path]) for path, _ in kept_numbers(module) if path in self._of_module]


def mark_parameters(stand_ins, tensors):
    """isinstance(x, nn.Parameter) is true of what stands for a call's parameter, as of it."""
    for stand_in, tensor in zip(stand_ins, tensors, strict=True):
        if isinstance(tensor, torch.nn.Parameter):
            stand_in._is_param = True


def kept_numbers(module):
    """(path, buffer) of those that hold one whole number; PyTorch's own layers only count in theirs."""
    found = []
    for prefix, child in module.named_modules(remove_duplicate=False):
        if not type(child).__module__.startswith("torch.nn."):
            buffers = child.named_buffers(prefix, recurse=False, remove_duplicate=False)
            found += [pair for pair in buffers if pair[1].dim() == 0 and pair[1].dtype in (torch.int32, torch.int64)]
    return found
