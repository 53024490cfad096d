"""How far apart correct computations of the same numbers may end: roundings drawn at random, the same on every machine.

    with RandomRounding(torch.float32, seed=1):
        loss = model_in_fp64(**batch).loss
        loss.backward()

PyTorch's own distance from fp64 is one draw of its kernels' roundings on one processor and bounds nothing: another
order of the same sums has another. Here each op runs in fp64, and its result is rounded to a number of `dtype` near it.
"""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

FP32_UNIT_ROUNDOFF = torch.finfo(torch.float32).eps / 2

# Ops linear in each operand: of the operands' absolute values they give, per entry, the magnitude of all terms summed.
SUMS = {
    *(aten.add, aten.sub, aten.sum, aten.mean, aten.cumsum, aten.mm, aten.addmm, aten.bmm, aten.baddbmm),
    *(aten.convolution, aten.convolution_backward, aten.embedding_dense_backward, aten.avg_pool2d),
}


class RandomRounding(TorchDispatchMode):
    """Rounds results of fp64 ops to `dtype`, each after an error of unit roundoff × magnitude × a standard normal draw.

    The magnitude is that of all terms for a sum, the largest entry's for what is several ops in one (a norm, a
    softmax), both with the unit roundoff of fp32, in which such kernels add up whatever their dtype; else, and at
    least, it is the result's own. A result that is a number of `dtype` already, as a copy is, stays exact.
    """

    def __init__(self, dtype, seed):
        super().__init__()
        self._dtype = dtype
        self._unit_roundoff = torch.finfo(dtype).eps / 2
        self._generator = torch.Generator().manual_seed(seed)
        self._formulas = sdpa_kernel(SDPBackend.MATH)  # attention as products and a softmax

    def __enter__(self):
        self._formulas.__enter__()
        return super().__enter__()

    def __exit__(self, *exception):
        super().__exit__(*exception)
        self._formulas.__exit__(*exception)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        results = result if isinstance(result, tuple) else (result,)
        magnitudes = None
        for index, value in enumerate(() if func.is_view else results):
            if not isinstance(value, torch.Tensor) or value.dtype != torch.float64:
                continue
            representable = (value.to(self._dtype) == value) | ~value.isfinite()
            if not representable.all():
                magnitudes = magnitudes or _magnitudes(func, args, kwargs, results)
                error = torch.maximum(self._unit_roundoff * value.abs(), FP32_UNIT_ROUNDOFF * magnitudes[index])
                draws = torch.randn(value.shape, dtype=value.dtype, generator=self._generator)
                rounded = (value + error * draws).to(self._dtype)
                value.copy_(torch.where(representable, value, rounded.to(value.dtype)))
        return result


def _magnitudes(func, args, kwargs, results):
    """Per result of an op: what its rounding error is proportional to."""
    if func.overloadpacket in SUMS:
        terms = func(*(_absolute(value) for value in args), **kwargs)
        return terms if isinstance(terms, tuple) else (terms,)
    absolute = [_absolute(value) for value in results]
    if torch.Tag.pointwise in func.tags:
        return absolute
    return [value.max() if isinstance(value, torch.Tensor) and value.numel() else value for value in absolute]


def _absolute(value):
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.abs().nan_to_num(0, 0, 0)
    return value
