"""Conversions of whole modules in forward, `self.router.to(torch.float32)`: one that changes no type does nothing, but
the exporter would refuse it as a write into parameters."""

import itertools

import torch

from lowtide.errors import UnsupportedError

_OF_ONE_DTYPE = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}


def conversions(is_running):
    """{name: what stands in the place of this method of nn.Module}; `is_running`: whether forward is traced."""
    return {name: _converting(name, is_running) for name in ("to", "cpu", *_OF_ONE_DTYPE)}


def _converting(name, is_running):
    convert = getattr(torch.nn.Module, name)

    def converted(module, *args, **kwargs):
        if not is_running():
            return convert(module, *args, **kwargs)
        dtype = _OF_ONE_DTYPE.get(name)
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, bool):
                continue  # non_blocking
            if isinstance(argument, torch.Tensor):
                dtype = argument.dtype
            elif isinstance(argument, torch.dtype):
                dtype = argument
            elif isinstance(argument, str | int | torch.device) and torch.device(argument).type != "cpu":
                raise UnsupportedError(f"forward moves a {type(module).__name__} to {argument}")
        tensors = itertools.chain(module.parameters(), module.buffers())
        changed = [
            tensor for tensor in tensors if tensor.is_floating_point() and tensor.dtype != (dtype or tensor.dtype)
        ]
        if changed or "memory_format" in kwargs:
            raise UnsupportedError(f"forward converts the parameters of a {type(module).__name__}")
        return module

    return converted
