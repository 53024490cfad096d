"""Functions of PyTorch that ask for more than their result needs, data or sizes as numbers: one node each.

torch.export follows such a function into an op whose result, read by the function alone, has a size from data, or makes
guards of what it asks.
"""

import torch
from torch.overrides import TorchFunctionMode

from .contiguous import contiguous, copy_in

_library = torch.library.Library("lowtide", "FRAGMENT")
_library.define(
    "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, int reduction, "
    "bool zero_infinity) -> Tensor"
)
_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


@torch.library.register_fake("lowtide::ctc_loss", lib=_library)
def _trace_ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity):
    """log_probs: (T, N, C), or (T, C) of one sequence."""
    each = reduction == _REDUCTIONS["none"] and log_probs.dim() == 3
    return log_probs.new_empty([log_probs.size(1)] if each else [])


def _never(*_):
    raise AssertionError("lowtide::ctc_loss stands in a captured graph only, where it is aten::ctc_loss")


# A result that takes a gradient where log_probs does.
torch.library.register_autograd("lowtide::ctc_loss", _never, lib=_library)


def _ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction=1, zero_infinity=False):
    lengths = [torch.as_tensor(given, dtype=None if torch.is_tensor(given) else torch.int64)
               for given in (input_lengths, target_lengths)]  # fmt: skip
    number = _REDUCTIONS.get(reduction, reduction)
    for tensor in (targets, *lengths) if log_probs.dim() == 3 else ():
        is_by_sequence = tensor is not targets or targets.dim() == 2
        torch._check(not is_by_sequence or tensor.size(0) == log_probs.size(1), lambda: "one of each for a sequence")
    return torch.ops.lowtide.ctc_loss(log_probs, targets, *lengths, blank, number, zero_infinity)


_WHOLE = {
    torch.ctc_loss: _ctc_loss,
    torch.nn.functional.ctc_loss: _ctc_loss,
    torch.Tensor.contiguous: contiguous,
}

# With generator=None these are overloads of their own, whose sizes PyTorch wants as numbers.
_DRAWS = {torch.rand, torch.randn, torch.randint}

_OPS = {torch.ops.lowtide.ctc_loss.default: torch.ops.aten.ctc_loss.Tensor}


class WholeCalls(TorchFunctionMode):
    """While active, a call of such a function makes one node."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _DRAWS and kwargs.get("generator", True) is None:
            kwargs = {name: value for name, value in kwargs.items() if name != "generator"}
        return _WHOLE.get(func, func)(*args, **kwargs)

    @staticmethod
    def name_in(graph_module):
        """Gives these nodes PyTorch's op for a target."""
        for module in graph_module.modules():
            if isinstance(module, torch.fx.GraphModule):
                copy_in(module)
                for node in module.graph.nodes:
                    node.target = _OPS.get(node.target, node.target)
