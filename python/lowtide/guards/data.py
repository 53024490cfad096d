"""`tensor.data = value` while forward is traced: a write past autograd, where nobody can tell that the memory is
another."""

import weakref

import torch

from lowtide.errors import UnsupportedError

_REFUSED = "forward sets the data of a tensor"


def write_data(tensor, value):
    """Makes `tensor`'s elements those of `value`; PyTorch, where it runs such a graph, takes the memory too."""
    _check(tensor, value)
    if torch.compiler.is_exporting():
        tensor.data.copy_(value.detach())
    else:
        tensor.data = value


def _check(tensor, value):
    if value.shape != tensor.shape or value.dtype != tensor.dtype:
        raise UnsupportedError(f"{_REFUSED} to one of another type")


def version_of(tensor):
    """How often it was written, as autograd counts; of tensors of inference mode nobody does."""
    return 0 if tensor.is_inference() else tensor._version


class PastAutograd:
    """Which tensors of a trace are written through `tensor.data` alone: their versions stay what they are, and what
    autograd has saved of them counts as unchanged."""

    def __init__(self):
        self._data = {}  # id → weak reference: what `tensor.data` gave, and views of it
        self._writes = {}  # memory → how many of its writes were such

    def data_of(self, tensor):
        """`tensor.data`, such that the trace has it."""
        data = tensor.detach()
        self._data[id(data)] = weakref.ref(data)
        return data

    def write(self, tensor):
        """Another one, that goes past autograd."""
        self._writes[memory_of(tensor)] = self._writes.get(memory_of(tensor), 0) + 1

    def call(self, call, func, args, kwargs):
        """call(func, args, kwargs), noted."""
        data = next((arg for arg in args if self._is_known(arg)), None) if self._data else None
        if data is None:
            return call(func, args, kwargs)
        before = version_of(data)
        result = call(func, args, kwargs)
        if (written := version_of(data) - before) > 0:
            self._writes[memory_of(data)] = self._writes.get(memory_of(data), 0) + written
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, torch.Tensor) and memory_of(each) == memory_of(data):
                self._data[id(each)] = weakref.ref(each)
        return result

    def is_all_of(self, tensor, version):
        """Whether all writes into the tensor since it had this version, if any, went past autograd. It counts none of
        those by batch norms into their averages."""
        return self._writes.get(memory_of(tensor), 0) == version_of(tensor) - version

    def _is_known(self, value):
        reference = self._data.get(id(value)) if isinstance(value, torch.Tensor) else None
        return reference is not None and reference() is value


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
        memory = {memory_of(tensor), memory_of(value)}
        others = (each for each in alive if each is not value and each is not tensor)
        if not is_computed or any(memory_of(each) in memory for each in others):
            raise UnsupportedError(_REFUSED)
        _check(tensor, value)
        tensor.detach().copy_(value.detach())


def memory_of(tensor):
    """A number for the memory that a strided tensor lies in: views of one another have the same."""
    return tensor.untyped_storage()._cdata
