"""Tensor.contiguous while torch.export follows forward."""

import torch

_library = torch.library.Library("lowtide", "FRAGMENT")
_library.define("contiguous(Tensor tensor) -> Tensor")


@torch.library.register_fake("lowtide::contiguous", lib=_library)
def _trace_contiguous(tensor):
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _never(*_):
    raise AssertionError("lowtide::contiguous stands in a captured graph only, where it is aten::clone")


torch.library.register_autograd("lowtide::contiguous", _never, lib=_library)


def contiguous(tensor, *, memory_format=torch.contiguous_format):
    """A copy where the example's tensor is not contiguous, whether or not it is at other sizes: PyTorch's own call
    makes a guard of each size that is not 1, and a batch of one would need a graph of its own."""
    if memory_format is torch.contiguous_format and _is_scattered(tensor):
        return torch.ops.lowtide.contiguous(tensor)
    return tensor.contiguous(memory_format=memory_format)


def copy_in(graph_module):
    """Makes these calls copies."""
    for node in graph_module.graph.nodes:
        if node.target is torch.ops.lowtide.contiguous.default:
            node.target = torch.ops.aten.clone.default
            node.kwargs = {"memory_format": torch.contiguous_format}


def _is_scattered(tensor):
    """Whether a tensor of free sizes is not contiguous at those of the example; False where that is not known."""
    if not any(isinstance(size, torch.SymInt) for size in tensor.shape):
        return False
    sizes, strides = map(_hints, (tensor.shape, tensor.stride()))
    if None in sizes or None in strides or 0 in sizes:
        return False
    numel = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and stride != numel:
            return True
        numel *= size
    return False


def _hints(numbers):
    """The example's values; None of what depends on data."""
    return [number.node.hint if isinstance(number, torch.SymInt) else number for number in numbers]
