"""What `./dev bench kernels` times: ops at sizes of the six models of `./dev bench training`.

A case is a graph in text form and the same in PyTorch. $t stands for the dtype.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F


@dataclass
class Case:
    family: str
    name: str
    text: str  # the body's lines; the last value named %y is the result
    inputs: list  # (name, "$t" or a dtype, shape, kind): of params gradients are wanted
    run: object  # PyTorch: inputs -> y
    flops: float = 0.0  # of forward; 0: what memory bounds
    limits: dict = field(default_factory=dict)  # name of an integer input -> its values are below
    backward_flops: float = 0.0
    reads: float = 1.0  # the share of its first input
    dtypes: tuple = ("f32", "bf16", "f16")

    @property
    def has_backward(self):
        return any(kind == "param" for *_, kind in self.inputs)

    def graph(self, dtype):
        values = ", ".join(f"%{name}: {of}[{_listed(shape)}] {kind}" for name, of, shape, kind in self.inputs)
        text = f"graph @kernel({values}) {{\n{self.text}\n  return %y output\n}}"
        return text.replace("$t", dtype)


def _listed(shape):
    return ", ".join(map(str, shape))


# Model → rows, then linear layers as (columns in, columns out, how often its weight is stored [in, out]).
LINEARS = {
    "gpt2": (1024, [(768, 2304, True), (768, 768, True), (768, 3072, True), (3072, 768, True), (768, 50257, False)]),
    "bloom3": (1024, [(768, 2304, False), (768, 3072, False), (3072, 768, False), (768, 30522, False)]),
    "bert": (1024, [(512, 512, False), (512, 2048, False), (2048, 512, False), (512, 30522, False)]),
    "llama": (1024, [(512, 256, False), (512, 1376, False), (1376, 512, False), (512, 32000, False)]),
    "vit": (1576, [(384, 384, False), (384, 1536, False), (1536, 384, False)]),
}


def product(name, m, k, n, a_transposed, b_transposed):
    a, b = ((k, m) if a_transposed else (m, k)), ((n, k) if b_transposed else (k, n))
    flags = f"transA={str(a_transposed).lower()}, transB={str(b_transposed).lower()}"
    return Case(
        "products",
        name,
        f"  %y: $t[{m}, {n}] = Gemm(alpha=1.0, beta=1.0, {flags}) %a, %b",
        [("a", "$t", a, "input"), ("b", "$t", b, "input")],
        lambda a, b: torch.mm(a.t() if a_transposed else a, b.t() if b_transposed else b),
        flops=2.0 * m * k * n,
    )


def products():
    for model, (rows, layers) in LINEARS.items():
        for cols_in, cols_out, in_by_out in layers:
            layer = f"{model} {rows}x{cols_in}x{cols_out}"
            yield product(f"{layer} y", rows, cols_in, cols_out, False, not in_by_out)
            yield product(f"{layer} dx", rows, cols_out, cols_in, False, in_by_out)
            if in_by_out:
                yield product(f"{layer} dw", cols_in, rows, cols_out, True, False)
            else:
                yield product(f"{layer} dw", cols_out, rows, cols_in, True, False)


def attention(model, batch, heads, length, causal, dropout=0.0):
    shape = (batch, heads, length, 64)
    flops = 4.0 * batch * heads * length * length * 64 * (0.5 if causal else 1)
    attrs = f"dropout={dropout}, is_causal={str(causal).lower()}, scale=0.125, stream=1"
    statistics = f"%l: f32[{batch}, {heads}, {length}]"
    return Case(
        "attention",
        f"{model} {batch}x{heads}x{length}x64" + (" dropout" if dropout else ""),
        f"  %y: $t[{_listed(shape)}], {statistics} = Attention({attrs}) %q, %k, %v",
        [(name, "$t", shape, "param") for name in "qkv"],
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=causal),
        flops=flops,
        backward_flops=2.5 * flops,
    )


def attentions():
    yield attention("gpt2, bloom3", 2, 12, 512, True)
    yield attention("gpt2, bloom3", 2, 12, 512, True, dropout=0.1)
    yield attention("llama", 2, 8, 512, True)
    yield attention("bert", 8, 8, 128, False)
    yield attention("vit", 8, 6, 197, False)


def norms():
    for model, rows, cols in (("gpt2", 1024, 768), ("vit", 1576, 384)):
        shape = [rows, cols]
        yield Case(
            "norms",
            f"{model} LayerNorm {rows}x{cols}",
            f"  %y: $t{shape}, %m: f32[{rows}], %i: f32[{rows}] = LayerNormalization(axis=1, epsilon=1e-05) %x, %g, %b",
            [("x", "$t", shape, "param"), ("g", "$t", [cols], "param"), ("b", "$t", [cols], "param")],
            lambda x, g, b: F.layer_norm(x, g.shape, g, b, 1e-5),
        )
    yield Case(
        "norms",
        "llama RMSNorm 1024x512",
        "  %y: $t[1024, 512], %i: f32[1024] = SimplifiedLayerNormalization(axis=1, epsilon=1e-06) %x, %g",
        [("x", "$t", [1024, 512], "param"), ("g", "$t", [512], "param")],
        lambda x, g: F.rms_norm(x, g.shape, g, 1e-6),
    )


def elementwise(family, name, op, shapes, y_shape, run, kind="param"):
    names = "xuvw"[: len(shapes)]
    operands = ", ".join(f"%{each}" for each in names)
    return Case(
        family,
        name,
        f"  %y: $t{list(y_shape)} = {op} {operands}",
        [(each, "$t", list(shape), kind) for each, shape in zip(names, shapes, strict=True)],
        run,
    )


def pointwise():
    wide, gated, rows = (1024, 3072), (1024, 1376), (1024, 768)
    yield elementwise("pointwise", "bloom3 gelu 1024x3072", "Gelu", [wide], wide, F.gelu)
    yield elementwise("pointwise", "llama silu 1024x1376", "Swish", [gated], gated, F.silu)
    yield elementwise("pointwise", "gpt2 add 1024x768", "Add", [rows, rows], rows, torch.add, "input")
    yield elementwise("pointwise", "llama mul 1024x1376", "Mul", [gated, gated], gated, torch.mul)
    dropout = "Dropout(ratio=0.1, stream=0)"
    yield elementwise("pointwise", "gpt2 dropout 1024x768", dropout, [rows], rows, lambda x: F.dropout(x, 0.1))


def softmaxes():
    shape = (12288, 512)
    softmax = "Softmax(axis=1)"
    yield elementwise("softmax", "gpt2 scores 12288x512", softmax, [shape], shape, lambda x: F.softmax(x, 1))


def reductions():
    by_column = "ReduceSum(axes=[0], keepdims=false)"
    wide = (1024, 3072)
    yield elementwise("reductions", "bias gradient 1024x3072", by_column, [wide], (3072,), lambda x: x.sum(0), "input")


def losses():
    for model, classes in (("gpt2", 50257), ("bert", 30522)):
        attrs = 'ignore_index=-100, label_smoothing=0.0, reduction="mean"'
        yield Case(
            "loss",
            f"{model} cross-entropy 1024x{classes}",
            f"  %y: f32[], %l: f32[1024] = SoftmaxCrossEntropyLoss({attrs}) %x, %labels",
            [("x", "$t", [1024, classes], "param"), ("labels", "i64", [1024], "input")],
            lambda x, labels: F.cross_entropy(x, labels),
            limits={"labels": classes},
        )


def embeddings():
    yield Case(
        "embedding",
        "gpt2 1024 of 50257x768",
        "  %y: $t[1024, 768] = Gather(axis=0) %table, %ids",
        [("table", "$t", [50257, 768], "param"), ("ids", "i64", [1024], "input")],
        lambda table, ids: F.embedding(ids, table),
        limits={"ids": 50257},
    )


def convolutions():
    for channels, out, pixels, side in ((64, 64, 56, 3), (256, 64, 56, 1), (256, 256, 14, 3)):
        x, w, pad = [8, channels, pixels, pixels], [out, channels, side, side], side // 2
        y, flops = [8, out, pixels, pixels], 2.0 * 8 * out * pixels * pixels * channels * side * side
        attrs = f"dilations=[1, 1], group=1, pads=[{pad}, {pad}, {pad}, {pad}], strides=[1, 1]"
        yield Case(
            "convolution",
            f"resnet50 {channels}>{out} {side}x{side} at {pixels}",
            f"  %y: $t{y} = Conv({attrs}) %x, %w",
            [("x", "$t", x, "param"), ("w", "$t", w, "param")],
            lambda x, w, pad=pad: F.conv2d(x, w, padding=pad),
            flops=flops,
            backward_flops=2 * flops,
            dtypes=("f32", "bf16"),
        )


FAMILIES = {
    "products": products,
    "attention": attentions,
    "norms": norms,
    "softmax": softmaxes,
    "loss": losses,
    "pointwise": pointwise,
    "reductions": reductions,
    "embedding": embeddings,
    "convolution": convolutions,
}


def cases(families=tuple(FAMILIES)):
    return [case for family in families for case in FAMILIES[family]()]
