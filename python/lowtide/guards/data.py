"""`tensor.data = value` while forward is traced: a write past autograd, where nobody can tell that the memory is
another."""

import weakref

import torch

from lowtide.errors import UnsupportedError

_REFUSED = "forward sets the data of a tensor"


def write_data(tensor, value):
    """Makes `tensor`'s elements those of `value`; PyTorch, where it runs such a graph, takes the memory too."""
    if value.shape != tensor.shape or value.dtype != tensor.dtype:
        raise UnsupportedError(f"{_REFUSED} to one of another type")
    if torch.compiler.is_exporting():
        tensor.detach().copy_(value.detach())
    else:
        tensor.data = value


class Computed:
    """Tensors that calls of a trace have made, as long as they live."""

    def __init__(self):
        self._tensors = {}  # id → weak reference

    def note(self, result, args):
        """`result`: of a call with these arguments."""
        if isinstance(result, torch.Tensor) and not any(result is arg for arg in args):
            self._tensors[id(result)] = weakref.ref(result)

    def set_data(self, tensor, value):
        """UnsupportedError where another tensor shares the memory of one of them, which it would go on to do or not."""
        alive = [found for reference in self._tensors.values() if (found := reference()) is not None]
        is_computed = any(value is each for each in alive) and not value._is_view()
        memory = {_memory(tensor), _memory(value)}
        others = (each for each in alive if each is not value and each is not tensor)
        if not is_computed or any(_memory(each) in memory for each in others):
            raise UnsupportedError(_REFUSED)
        write_data(tensor, value)


def _memory(tensor):
    return tensor.untyped_storage()._cdata
