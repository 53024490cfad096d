"""Ops of ATen's whose types PyTorch's tracer does not know, or finds by data alone: one node each, with the types that
they have in PyTorch. Gradients are those of its own kernels.

The rank that lstsq finds is no size here: where residuals have none because of it, PyTorch runs the call.
"""

import torch

_aten = torch.ops.aten
_library = torch.library.Library("lowtide", "FRAGMENT")


def _like(tensor, *_):
    return torch.empty_like(tensor)


def _least_squares(a, b, rcond=None, driver=None):
    """a: (…, m, n); b: (…, m, k), or (…, m)."""
    *_, rows, columns = a.shape
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[: len(a.shape) - 2])
    is_vector = b.dim() == a.dim() - 1
    results = () if is_vector else b.shape[-1:]
    has_residuals = driver not in (None, "gelsy") and rows > columns
    has_values = driver in ("gelsd", "gelss")
    real = a.real.dtype if a.is_complex() else a.dtype
    return (
        a.new_empty((*batch, columns, *results)),
        a.new_empty((*batch, *results) if has_residuals else (0,), dtype=real),
        a.new_empty((0,) if driver == "gels" else a.shape[:-2], dtype=torch.int64),
        a.new_empty((*a.shape[:-2], min(rows, columns)) if has_values else (0,), dtype=real),
    )


_OPS = {
    "fake_quantize_per_tensor": (
        "Tensor self, float scale, int zero_point, int quant_min, int quant_max",
        _like,
        _aten.fake_quantize_per_tensor_affine.default,
    ),
    "fake_quantize_per_tensor_of_tensors": (
        "Tensor self, Tensor scale, Tensor zero_point, int quant_min, int quant_max",
        _like,
        _aten.fake_quantize_per_tensor_affine.tensor_qparams,
    ),
    "fake_quantize_per_channel": (
        "Tensor self, Tensor scale, Tensor zero_point, int axis, int quant_min, int quant_max",
        _like,
        _aten.fake_quantize_per_channel_affine.default,
    ),
    "fake_quantize_learnable": (
        "Tensor self, Tensor scale, Tensor zero_point, int quant_min, int quant_max, float grad_factor=1.0",
        _like,
        _aten._fake_quantize_learnable_per_tensor_affine.default,
    ),
    "fake_quantize_learnable_per_channel": (
        "Tensor self, Tensor scale, Tensor zero_point, int axis, int quant_min, int quant_max, float grad_factor=1.0",
        _like,
        _aten._fake_quantize_learnable_per_channel_affine.default,
    ),
    "least_squares": ("Tensor self, Tensor b, float? rcond=None, *, str? driver=None", _least_squares,
                      _aten.linalg_lstsq.default),
}  # fmt: skip

for _name, (_arguments, _types, _) in _OPS.items():
    _results = "(Tensor, Tensor, Tensor, Tensor)" if _types is _least_squares else "Tensor"
    _library.define(f"{_name}({_arguments}) -> {_results}")
    torch.library.register_fake(f"lowtide::{_name}", _types, lib=_library)


def _fake_quantize(self, scale, zero_point, *bounds, **others):
    tensors = "_of_tensors" if isinstance(scale, torch.Tensor) else ""
    return getattr(torch.ops.lowtide, f"fake_quantize_per_tensor{tensors}")(self, scale, zero_point, *bounds, **others)


def _lstsq(A, B, rcond=None, *, driver=None):  # noqa: N803
    *found, values = torch.ops.lowtide.least_squares(A, B, rcond, driver=driver)
    return torch.return_types.linalg_lstsq((*found, values.detach()))


# PyTorch's function → what is called in its place.
WHOLE_OPS = {
    torch.fake_quantize_per_tensor_affine: _fake_quantize,
    torch.fake_quantize_per_channel_affine: torch.ops.lowtide.fake_quantize_per_channel,
    torch._fake_quantize_learnable_per_tensor_affine: torch.ops.lowtide.fake_quantize_learnable,
    torch._fake_quantize_learnable_per_channel_affine: torch.ops.lowtide.fake_quantize_learnable_per_channel,
    torch.linalg.lstsq: _lstsq,
}
NAMED = {getattr(torch.ops.lowtide, name).default: op for name, (_, _, op) in _OPS.items()}
