"""ONNX's matrix products."""

from lowtide.errors import UnsupportedError

from .contents import quotient, times
from .read_einsum import einsum
from .read_node import axes_of


def _matmul(r, n):
    a, b = r.operands(n)
    squeezed = []
    if len(r.shape(a)) == 1:
        a = r.op("Unsqueeze", [a], axes=[0])
        squeezed.append(-2)
    if len(r.shape(b)) == 1:
        b = r.op("Unsqueeze", [b], axes=[1])
        squeezed.append(-1)
    y = r.op("MatMul", [a, b])
    return r.op("Squeeze", [y], axes=axes_of(squeezed, len(r.shape(y)))) if squeezed else y


def _gemm(r, n):
    flags = {name: bool(n.get(name, 0)) for name in ("transA", "transB")}
    return r.op("Gemm", r.operands(n), alpha=n.get("alpha", 1.0), beta=n.get("beta", 1.0), **flags)


def fused_matmul(r, n):
    if n.get("transBatchA", 0) or n.get("transBatchB", 0):
        raise UnsupportedError("it transposes batch dims")
    flags = {name: bool(n.get(name, 0)) for name in ("transA", "transB")}
    return r.op("FusedMatMul", r.operands(n), alpha=n.get("alpha", 1.0), **flags)


def _heads(r, value, heads):
    """[batch, length, heads*size] → [batch, heads, length, size]"""
    if len(r.shape(value)) == 4:
        return value
    batch, length, width = r.shape(value)
    split = r.op("Reshape", [value], shape=[batch, length, heads, quotient(width, heads)])
    return r.op("Transpose", [split], perm=[0, 2, 1, 3])


def _attention(r, n):
    """Of opset 23, without past keys: torch.onnx writes scaled_dot_product_attention so."""
    if any(n.has(index) for index in (4, 5, 6)) or any(n.wants(index) for index in (1, 2, 3)):
        raise UnsupportedError("it takes or gives past keys, or gives its scores")
    if n.get("softcap", 0.0) or n.get("qk_matmul_output_mode", 0):
        raise UnsupportedError("softcap is set")
    q, k, v, *mask = [value for value in r.operands(n) if value is not None]
    flat = len(r.shape(q)) == 3
    q, k, v = _heads(r, q, n.get("q_num_heads")), *(_heads(r, value, n.get("kv_num_heads")) for value in (k, v))
    batch, heads, length, size = r.shape(q)
    if not isinstance(size, int):
        raise UnsupportedError("the size of its heads is not constant")
    each = quotient(heads, r.shape(k)[1])
    if each != 1:
        k, v = (_repeated(r, value, each) for value in (k, v))
    if mask:
        wide = [1] * (4 - len(r.shape(mask[0])))
        mask = [r.op("Unsqueeze", mask, axes=list(range(len(wide))))] if wide else mask
    scale = n.get("scale") or size**-0.5
    causal = bool(n.get("is_causal", 0))
    y = r.ops("Attention", [q, k, v, *mask], dropout=0.0, is_causal=causal, scale=scale, stream=0)[0]
    if not flat:
        return y
    width = times(heads, r.shape(y)[3])
    return r.op("Reshape", [r.op("Transpose", [y], perm=[0, 2, 1, 3])], shape=[batch, length, width])


def _repeated(r, value, times_each):
    """Each head `times_each` times."""
    batch, heads, length, size = r.shape(value)
    wide = r.op("Expand", [r.op("Unsqueeze", [value], axes=[2])], shape=[batch, heads, times_each, length, size])
    return r.op("Reshape", [wide], shape=[batch, times(heads, times_each), length, size])


PRODUCTS = {
    "Attention": _attention,
    "Einsum": einsum,
    "MatMul": _matmul,
    "Gemm": _gemm,
}
