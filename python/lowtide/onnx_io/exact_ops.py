"""lowtide's ops that ONNX has under the same meaning: one node each, which reads back as the same op.

A writer returns False, having written nothing, for a node whose attributes or results ONNX's op lacks.
"""

from onnx import helper

from .element_types import FLOATS, NUMPY_TYPES, ONNX_TYPES

_SAME = """Identity Abs Neg Exp Log Sqrt Reciprocal Sin Cos Tan Atan Tanh Sigmoid Erf Relu Gelu Floor Ceil Round Sign
    Not BitwiseNot IsNaN IsInf HardSwish Mish Add Sub Mul Div Pow Max Min And Or Xor BitwiseAnd BitwiseOr BitwiseXor
    Equal Less LessOrEqual Greater GreaterOrEqual Where MatMul GatherND""".split()
_WITH_ATTRIBUTES = {  # op → attributes of the same name and meaning
    "LeakyRelu": ("alpha",),
    "Softmax": ("axis",),
    "LogSoftmax": ("axis",),
    "Transpose": ("perm",),
    "Concat": ("axis",),
    "GatherElements": ("axis",),
    "ScatterND": ("reduction",),
    "Gemm": ("transA", "transB", "alpha", "beta"),
    "Conv": ("strides", "pads", "dilations", "group", "kernel_shape"),
    "ArgMax": ("axis", "keepdims"),
    "ArgMin": ("axis", "keepdims"),
}
_REDUCTIONS = "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL2 ReduceLogSumExp".split()


def _plain(kind, value):
    """As an attribute of ONNX's, or None for one that ONNX cannot hold."""
    if kind in ("int", "ints", "bool"):
        items = value if kind == "ints" else [value]
        return None if any(isinstance(item, str) for item in items) else (int(value) if kind == "bool" else value)
    return value


def _attributes(n, names):
    """The attributes by name, or None if ONNX cannot hold them."""
    attrs = {name: _plain(*n.typed_attrs[name]) for name in names if name in n.typed_attrs}
    return None if None in attrs.values() else attrs


def _same(op, names):
    def write(w, n):
        attrs = _attributes(n, names)
        if attrs is None:
            return False
        w.node(op, n.inputs, n.outputs, **attrs)

    return write


def _cast(w, n):
    w.node("Cast", n.inputs, n.outputs, to=ONNX_TYPES[n["to"]])


def _unless(name, write):
    """For an attribute that means something to the gradient only."""
    return lambda w, n: False if name in n.typed_attrs else write(w, n)


def reduction(w, n):
    w.node(n.op, [n.inputs[0], w.sizes(n["axes"])], n.outputs, keepdims=int(n["keepdims"]))


# ---- views


def _reshape(w, n):
    constant = all(isinstance(size, int) and size > 0 for size in n["shape"])
    # A size that is 0 at run time means 0, not "as in the input".
    w.node("Reshape", [n.inputs[0], w.sizes(n["shape"])], n.outputs, allowzero=None if constant else 1)


def _slice(w, n):
    bounds = [w.sizes([n[name]]) for name in ("start", "end", "axis", "step")]
    w.node("Slice", [n.inputs[0], *bounds], n.outputs)


def _expand(w, n):
    w.node("Expand", [n.inputs[0], w.sizes(n["shape"])], n.outputs)


def _unsqueeze(w, n):
    w.node("Unsqueeze", [n.inputs[0], w.sizes(n["axes"])], n.outputs)


def _squeeze(w, n):
    if not n["axes"]:  # ONNX would squeeze every axis
        return False
    w.node("Squeeze", [n.inputs[0], w.sizes(n["axes"])], n.outputs)


# ---- creation


def fill(n):
    """What Constant and ConstantOfShape are made of."""
    value = n.get("value") if n["dtype"] in FLOATS else n.get("int_value")
    return 0 if value is None else value


def _constant(w, n):
    dtype, value = n["dtype"], fill(n)
    if isinstance(value, str):
        return False
    w.node("Constant", [], n.outputs, value=_tensor(dtype, [], value))


def _constant_of_shape(w, n):
    dtype, value = n["dtype"], fill(n)
    if isinstance(value, str):
        return False
    w.node("ConstantOfShape", [w.sizes(n["shape"])], n.outputs, value=_tensor(dtype, [1], value))


def _tensor(dtype, shape, value):
    return helper.make_tensor("value", ONNX_TYPES[dtype], shape, [NUMPY_TYPES[dtype](value)])


# ---- the rest


def clip(w, n):
    bounds = ["" if n.get(name) is None else w.scalar(n[name], n.dtype).name for name in ("min", "max")]
    w.node("Clip", [n.inputs[0], *bounds], n.outputs)


def _mod(w, n):
    fmod = bool(n.get("fmod", False))
    if n.dtype in FLOATS and not fmod:  # ONNX has only the remainder of the dividend's sign for floats
        return False
    w.node("Mod", n.inputs, n.outputs, fmod=int(fmod))


def _elu(w, n):
    if n["scale"] != 1 or n["input_scale"] != 1:
        return False
    w.node("Elu", n.inputs, n.outputs, alpha=n["alpha"])


def _softplus(w, n):
    if n["beta"] != 1 or n["threshold"] < 20:
        return False
    w.node("Softplus", n.inputs, n.outputs)


def _hard_sigmoid(w, n):
    w.node("HardSigmoid", n.inputs, n.outputs, alpha=1 / 6, beta=0.5)


def _cum_sum(w, n):
    w.node("CumSum", [n.inputs[0], w.size(n["axis"]).name], n.outputs, reverse=int(n.get("reverse", False)))


def _top_k(w, n):
    attrs = {"axis": n["axis"], "largest": int(n["largest"]), "sorted": int(n.get("sorted", True))}
    w.node("TopK", [n.inputs[0], w.sizes([n["k"]])], _all_outputs(w, n), **attrs)


def _all_outputs(w, n):
    """ONNX's TopK gives both, wanted or not."""
    return [name or w.fresh("unused") for name in n.outputs]


# ---- ops with results of their own for backward: with `own_ops` they stay what they are


def _layer_normalization(w, n):
    if w.own_ops or len(n.inputs) < 2 or n.inputs[1] == "" or n.wants(1) or n.wants(2):
        return False
    w.node("LayerNormalization", n.inputs, n.outputs[:1], axis=n["axis"], epsilon=n["epsilon"])


def _cross_entropy(w, n):
    half = n.input_types[0][0] in ("bf16", "f16")  # ONNX's loss has the logits' type
    if w.own_ops or half or n.wants(1) or n["label_smoothing"] != 0 or len(n.shape) < 2:
        return False
    attrs = {"reduction": n["reduction"], "ignore_index": n["ignore_index"]}
    w.node("SoftmaxCrossEntropyLoss", n.inputs, n.outputs[:1], **attrs)


def _max_pool(w, n):
    attrs = _attributes(n, ("kernel_shape", "strides", "pads", "dilations", "ceil_mode"))
    if w.own_ops or n.wants(1) or attrs is None:  # ONNX counts through the whole tensor, lowtide through one channel
        return False
    w.node("MaxPool", n.inputs, n.outputs[:1], **attrs)


# ---- indices and windows


def _pad(w, n):
    value = w.scalar(n["value"], n.dtype).name if n["mode"] == "constant" else ""
    w.node("Pad", [n.inputs[0], w.sizes(n["pads"]), value], n.outputs, mode=n["mode"])


def _tile(w, n):
    w.node("Tile", [n.inputs[0], w.sizes(n["repeats"])], n.outputs)


def _trilu(w, n):
    w.node("Trilu", [n.inputs[0], w.size(n["k"]).name], n.outputs, upper=int(n["upper"]))


def _gather(w, n):
    w.node("Gather", n.inputs, n.outputs, axis=n["axis"])


def _average_pool(w, n):
    attrs = _attributes(n, ("kernel_shape", "strides", "pads", "ceil_mode", "count_include_pad"))
    if attrs is None:
        return False
    w.node("AveragePool", n.inputs, n.outputs, **attrs)


EXACT = {
    **{op: _same(op, ()) for op in _SAME},
    **{op: _same(op, names) for op, names in _WITH_ATTRIBUTES.items()},
    **dict.fromkeys(_REDUCTIONS, _unless("nan_shares", reduction)),
    "Cast": _cast,
    "Reshape": _reshape,
    "Slice": _slice,
    "Expand": _expand,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Clip": _unless("open", clip),
    "ScatterElements": _unless("anew", _same("ScatterElements", ("axis", "reduction"))),
    "Mod": _mod,
    "Elu": _elu,
    "Softplus": _softplus,
    "HardSigmoid": _hard_sigmoid,
    "CumSum": _cum_sum,
    "TopK": _top_k,
    "LayerNormalization": _layer_normalization,
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    "Pad": _pad,
    "Tile": _tile,
    "Trilu": _trilu,
    "Gather": _unless("padding_idx", _gather),
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
}
