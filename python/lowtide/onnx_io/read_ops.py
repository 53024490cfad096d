"""ONNX's ops as lowtide's: one function each, from the reader and a node to the value (or values) that it gives."""

from .read_indices import INDICES
from .read_pointwise import POINTWISE, same
from .read_products import PRODUCTS, fused_matmul
from .read_recurrent import RECURRENT
from .read_rows import ROWS
from .read_views import VIEWS
from .read_windows import WINDOWS

OPS = {**POINTWISE, **VIEWS, **ROWS, **PRODUCTS, **INDICES, **WINDOWS, **RECURRENT}
# What lowtide has no op for, with the reason.
REFUSED = {
    "Loop": "how often it runs depends on data",
    "Scan": "it runs a graph for each slice of its operands",
    "NonZero": "how many elements it gives depends on data",
    "Unique": "how many elements it gives depends on data",
    "Compress": "how many elements it gives depends on data",
    "NonMaxSuppression": "how many boxes it gives depends on data",
    "QuantizeLinear": "lowtide trains in floats: export the model before it is quantised",
    "DequantizeLinear": "lowtide trains in floats: export the model before it is quantised",
}


def table(domain):
    """ONNX op → function(reader, node) → value or list of values."""
    return {"": OPS, "ai.onnx": OPS, "com.microsoft": MICROSOFT}.get(domain, {})


def _bias_gelu(r, n):
    return r.op("BiasGelu", r.operands(n))


def _quick_gelu(r, n):
    return r.op("QuickGelu", r.operands(n), alpha=n.get("alpha", 1.702))


MICROSOFT = {
    "Gelu": same("Gelu"),
    "BiasGelu": _bias_gelu,
    "FastGelu": same("FastGelu"),
    "QuickGelu": _quick_gelu,
    "FusedMatMul": fused_matmul,
}
