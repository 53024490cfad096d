"""lowtide's ops that ONNX lacks, written as what they mean in ONNX's standard ops (the formulas of opset/ops.def)."""

import math

import numpy

from lowtide.errors import UnsupportedError

from .element_types import FLOATS, NUMPY_TYPES, ONNX_TYPES
from .exact_ops import clip, fill, reduction
from .recurrence import recurrence

_INT64_MIN = int(numpy.iinfo(numpy.int64).min)


def _identity(w, n):
    w.node("Identity", n.inputs, n.outputs)


def _formula(function):
    """A definition from a function of the inputs as terms; absent ones are None."""

    def write(w, n):
        terms = [w.input(n, index) if name else None for index, name in enumerate(n.inputs)]
        w.give(n, function(w, n, *terms))

    return write


# ---- creation and random numbers


def _symbolic_constant(w, n):
    w.give(n, w.size(fill(n), n["dtype"]))


def _symbolic_fill(w, n):
    w.give(n, w.term("Expand", w.size(fill(n), n["dtype"]), w.sizes(n["shape"])))


def _range(w, n):
    dtype, floating = n["dtype"], n["dtype"] in FLOATS
    start = n.get("start", 0.0) if floating else n.get("int_start", 0)
    step = n.get("step", 1.0) if floating else n.get("int_step", 1)
    counted = _count(w, n["numel"]).cast(dtype)
    if step != 1:
        counted = counted * (step if floating else w.size(step, dtype))
    if start != 0:
        counted = counted + (start if floating else w.size(start, dtype))
    w.give(n, counted)


def _count(w, numel):
    """0, 1, … numel - 1."""
    return w.term("Range", w.size(0), w.size(numel), w.size(1))


def _dropped(w, x, ratio):
    return w.term("Dropout", x, w.scalar(ratio, "f32"), w.scalar(True, "bool"))


def _dropout(w, n, x):
    return _dropped(w, x, n["ratio"])


def _bias_dropout(w, n, x, bias, residual=None):
    y = _dropped(w, x + bias, n["ratio"])
    return y if residual is None else y + residual


def _random(op, *names):
    def write(w, n):
        like = w.term("ConstantOfShape", w.sizes(n["shape"]), dtype="f32")
        w.node(op, [like.name], n.outputs, dtype=ONNX_TYPES[n["dtype"]], **{name: n[name] for name in names})

    return write


# ---- pointwise


def _elu(w, n, x):
    negative = (w.term("Exp", x * n["input_scale"]) - 1) * (n["scale"] * n["alpha"])
    return w.term("Where", x.greater(0), x * n["scale"], negative, dtype=x.dtype)


def _softplus(w, n, x):
    scaled = x * n["beta"]
    soft = w.term("Softplus", scaled) / n["beta"]
    return w.term("Where", scaled.greater(n["threshold"]), x, soft, dtype=x.dtype)


def _gelu(approximate):
    def formula(w, n, x, bias=None):
        return w.term("Gelu", x if bias is None else x + bias, approximate=approximate)

    return formula


def _floor_div(w, n, a, b):
    if a.dtype in FLOATS:
        return w.term("Floor", a / b)
    return (a - w.term("Mod", a, b, fmod=0)) / b


def _float_mod(w, n, a, b):
    """Of the divisor's sign."""
    rest = w.term("Mod", a, b, fmod=1)
    other_sign = w.term("Xor", rest.less(0), b.less(0))
    moved = w.term("And", other_sign, w.term("Not", rest.equals(0)))
    return w.term("Where", moved, rest + b, rest, dtype=a.dtype)


def _atan2(w, n, y, x):
    angle = w.term("Atan", y / x)
    half_turn = w.term("Where", y.less(0), w.scalar(-math.pi, y.dtype), w.scalar(math.pi, y.dtype), dtype=y.dtype)
    on_axis = w.term("Sign", y) * (math.pi / 2)
    beside = w.term("Where", x.less(0), angle + half_turn, angle, dtype=y.dtype)
    return w.term("Where", x.equals(0), on_axis, beside, dtype=y.dtype)


# ---- rows


def _statistics_dtype(dtype):
    return "f64" if dtype == "f64" else "f32"


def _mean(w, x, axes, keepdims=True):
    return w.term("ReduceMean", x, w.sizes(axes), keepdims=int(keepdims))


def _standardise(w, x, axes, epsilon):
    """((x - mean) / sqrt(variance + epsilon), mean, the inverse of that root), all with x's rank."""
    mean = _mean(w, x, axes)
    centred = x - mean
    inverse = w.term("Reciprocal", w.term("Sqrt", _mean(w, centred * centred, axes) + epsilon))
    return centred * inverse, mean, inverse


def _give_statistics(w, n, *terms, axes):
    for index, term in enumerate(terms, 1):
        if n.wants(index):
            w.give(n, w.term("Squeeze", term, w.sizes(axes)), index)


def _affine(w, y, weight, bias, dtype):
    y = y if weight is None else y * weight.cast(y.dtype)
    y = y if bias is None else y + bias.cast(y.dtype)
    return y.cast(dtype)


def _unsqueezed(w, x, axes):
    return w.term("Unsqueeze", x, w.sizes(list(axes))) if axes else x


def _optional(w, n, index):
    return w.input(n, index) if index < len(n.inputs) and n.inputs[index] else None


def _layer_normalization(w, n):
    axes = list(range(n["axis"], len(n.shape)))
    x = w.input(n).cast(_statistics_dtype(n.dtype))
    y, mean, inverse = _standardise(w, x, axes, n["epsilon"])
    _give_statistics(w, n, mean, inverse, axes=axes)
    if n.wants(0):
        w.give(n, _affine(w, y, _optional(w, n, 1), _optional(w, n, 2), n.dtype))


def _rms_normalization(w, n):
    axes = list(range(n["axis"], len(n.shape)))
    x = w.input(n).cast(_statistics_dtype(n.dtype))
    inverse = w.term("Reciprocal", w.term("Sqrt", _mean(w, x * x, axes) + n["epsilon"]))
    _give_statistics(w, n, inverse, axes=axes)
    if n.wants(0):
        w.give(n, _affine(w, x * inverse, _optional(w, n, 1), None, n.dtype))


def _along_channels(w, n, index):
    """Per-channel [C] as [C, 1, …]."""
    found = _optional(w, n, index)
    return found and _unsqueezed(w, found, range(1, len(n.shape) - 1))


def _group_normalization(w, n):
    batch, channels, *spatial = n.shape
    groups = n["num_groups"]
    inner = _product([f"({channels})//({groups})", *spatial])
    x = w.term("Reshape", w.input(n), w.sizes([batch, groups, inner])).cast(_statistics_dtype(n.dtype))
    y, mean, inverse = _standardise(w, x, [2], n["epsilon"])
    _give_statistics(w, n, mean, inverse, axes=[2])
    if n.wants(0):
        y = w.term("Reshape", y, w.sizes(n.shape))
        w.give(n, _affine(w, y, _along_channels(w, n, 1), _along_channels(w, n, 2), n.dtype))


def _batch_normalization(w, n):
    """In training: with the batch's statistics, and running ones moved towards them."""
    axes = [axis for axis in range(len(n.shape)) if axis != 1]
    x = w.input(n).cast(_statistics_dtype(n.dtype))
    y, mean, inverse = _standardise(w, x, axes, n["epsilon"])
    _give_statistics(w, n, mean, inverse, axes=axes)
    count = w.size(_product([n.shape[axis] for axis in axes]), x.dtype)
    centred = x - mean
    variance = w.term("ReduceSum", centred * centred, w.sizes(axes), keepdims=0) / (count - 1)
    for index, batch in ((3, _mean(w, x, axes, keepdims=False)), (4, variance)):
        if n.wants(index):
            old = w.input(n, index)
            w.give(n, old * (1 - n["momentum"]) + batch.cast(old.dtype) * n["momentum"], index)
    if n.wants(0):
        w.give(n, _affine(w, y, _along_channels(w, n, 1), _along_channels(w, n, 2), n.dtype))


def _product(sizes):
    if all(isinstance(size, int) for size in sizes):
        return math.prod(sizes)
    return "*".join(f"({size})" for size in sizes)


def _bias_softmax(w, n, x, bias):
    return w.term("Softmax", x + bias, axis=n["axis"])


def _cross_entropy(w, n):
    """Unbatched, with smoothed labels, or with its log-sum-exp wanted."""
    statistics = _statistics_dtype(n.dtype)
    logits, labels, weight = w.input(n), w.input(n, 1), _optional(w, n, 2)
    unbatched = len(n.shape) < 2
    if unbatched:
        logits, labels = (w.term("Unsqueeze", term, w.sizes([0])) for term in (logits, labels))
    logits = logits.cast(statistics)
    log_sum_exp = w.term("ReduceLogSumExp", logits, w.sizes([1]), keepdims=1)
    logp = logits - log_sum_exp
    kept = w.term("Not", labels.equals(n["ignore_index"]))
    safe = w.term("Where", kept, labels, w.scalar(0, labels.dtype), dtype=labels.dtype)
    at_label = w.term("GatherElements", logp, w.term("Unsqueeze", safe, w.sizes([1])), axis=1)
    loss = -w.term("Squeeze", at_label, w.sizes([1]))
    weights = kept.cast(statistics)
    if weight is not None:
        weight = weight.cast(statistics)
        weights = weights * w.term("Gather", weight, safe, axis=0)
        logp = logp * _unsqueezed(w, weight, range(1, max(len(n.shape), 2) - 1))
    smoothing = n["label_smoothing"]
    loss = loss * weights
    if smoothing:
        classes = w.size(n.shape[0 if unbatched else 1], statistics)
        even = -w.term("ReduceSum", logp, w.sizes([1]), keepdims=0) * kept.cast(statistics) / classes
        loss = loss * (1 - smoothing) + even * smoothing
    every = list(range(max(len(n.shape) - 1, 1)))
    if n["reduction"] != "none":
        total = w.term("ReduceSum", weights, w.sizes(every), keepdims=0)
        loss = w.term("ReduceSum", loss, w.sizes(every), keepdims=0)
        if n["reduction"] == "mean":
            loss = loss / total
    elif unbatched:
        loss = w.term("Squeeze", loss, w.sizes([0]))
    if n.wants(1):
        w.give(n, w.term("Squeeze", log_sum_exp, w.sizes([0, 1] if unbatched else [1])), 1)
    if n.wants(0):
        w.give(n, loss)


# ---- matrix multiply


def _transposed(w, x, rank):
    return w.term("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])


def _fused_matmul(w, n, a, b):
    a = _transposed(w, a, len(n.shape)) if n["transA"] else a
    b = _transposed(w, b, len(n.input_types[1][1])) if n["transB"] else b
    product = w.term("MatMul", a, b)
    return product if n["alpha"] == 1 else product * n["alpha"]


def _repeat_heads(w, x, shape, heads):
    """[B, Hk, T, E] → [B, H, T, E], each head for H/Hk queries' heads."""
    batch, own, length, width = shape
    if own == heads:
        return x
    wide = [batch, own, f"({heads})//({own})", length, width]
    x = w.term("Expand", w.term("Unsqueeze", x, w.sizes([2])), w.sizes(wide))
    return w.term("Reshape", x, w.sizes([batch, heads, length, width]))


def _attention(w, n):
    heads, queries = n.shape[1], n.shape[2]
    k_shape, v_shape = n.input_types[1][1], n.input_types[2][1]
    statistics = _statistics_dtype(n.dtype)
    q, mask = w.input(n), _optional(w, n, 3)
    k = _repeat_heads(w, w.input(n, 1), k_shape, heads)
    v = _repeat_heads(w, w.input(n, 2), v_shape, heads)
    scores = w.term("MatMul", q, _transposed(w, k, 4)).cast(statistics) * n["scale"]
    allowed = None
    if mask is not None and mask.dtype == "bool":
        allowed = mask
    elif mask is not None:
        bias = _optional(w, n, 4)
        scores = scores + (mask if bias is None else mask + bias).cast(statistics)
        lowest = w.scalar(-math.inf, statistics)
        allowed = w.term("Not", w.term("Equal", scores, lowest, dtype="bool"))
    if n["is_causal"]:
        i = w.term("Unsqueeze", _count(w, queries), w.sizes([1]))
        j = w.term("Unsqueeze", _count(w, k_shape[2]), w.sizes([0]))
        causal = j.at_most(i)
        allowed = causal if allowed is None else w.term("And", allowed, causal)
    if allowed is not None:
        lowest = w.scalar(float(numpy.finfo(NUMPY_TYPES[statistics]).min), statistics)
        scores = w.term("Where", allowed, scores, lowest, dtype=statistics)
    if n.wants(1):
        w.give(n, w.term("ReduceLogSumExp", scores, w.sizes([3]), keepdims=0), 1)
    if not n.wants(0):
        return
    probabilities = w.term("Softmax", scores, axis=3)
    if mask is not None:  # a query that may attend nothing gets zeros
        probabilities = w.term("Where", allowed, probabilities, w.scalar(0, statistics), dtype=statistics)
    if n["dropout"]:
        probabilities = _dropped(w, probabilities, n["dropout"])
    w.give(n, w.term("MatMul", probabilities.cast(n.dtype), v))


def _rotary(w, n, x, cos, sin):
    if n.get("transposed", False):
        raise UnsupportedError("the transposed RotaryEmbedding belongs to a backward graph")
    axis, width = len(n.shape) - 1, n.shape[-1]
    half = width // 2 if isinstance(width, int) else f"({width})//2"
    if n.get("interleaved", False):
        pairs = w.term("Reshape", x, w.sizes([*n.shape[:-1], half, 2]))
        turned = [-_cut(w, pairs, axis + 1, 1, 2), _cut(w, pairs, axis + 1, 0, 1)]
        rotated = w.term("Reshape", w.term("Concat", *turned, axis=axis + 1), w.sizes(n.shape))
    else:
        rotated = w.term("Concat", -_cut(w, x, axis, half, width), _cut(w, x, axis, 0, half), axis=axis)
    return x * cos + rotated * sin


def _cut(w, x, axis, start, end):
    return w.term("Slice", x, w.sizes([start]), w.sizes([end]), w.sizes([axis]))


# ---- indices


def _repeat_interleave(w, n, x):
    axis, repeats, shape = n["axis"], n["repeats"], list(n.shape)
    wide = w.term("Unsqueeze", x, w.sizes([axis + 1]))
    wide = w.term("Expand", wide, w.sizes([*shape[: axis + 1], repeats, *shape[axis + 1 :]]))
    return w.term("Reshape", wide, w.sizes([*shape[:axis], _product([shape[axis], repeats]), *shape[axis + 1 :]]))


def _flip(w, n, x):
    axes = n["axes"]
    last, first = w.sizes([-1] * len(axes)), w.sizes([_INT64_MIN] * len(axes))
    return w.term("Slice", x, last, first, w.sizes(axes), w.sizes([-1] * len(axes)))


def _roll(w, n, x):
    for axis, shift in zip(n["axes"], n["shifts"], strict=True):
        size = n.shape[axis]
        if isinstance(shift, int) and isinstance(size, int):
            cut = -shift % size if size else 0
        else:
            cut = f"(0 - ({shift})) % ({size})"
        x = w.term("Concat", _cut(w, x, axis, cut, size), _cut(w, x, axis, 0, cut), axis=axis)
    return x


def _gather(w, n, data, indices):
    return w.term("Gather", data, indices, axis=n["axis"])


def _slice_scatter(w, n, base, update):
    axis, size, shape = n["axis"], n.shape[n["axis"]], n.input_types[1][1]
    if n["step"] == 1:
        parts = [_cut(w, base, axis, 0, n["start"]), update, _cut(w, base, axis, n["end"], size)]
        return w.term("Concat", *parts, axis=axis)
    rows = _count(w, shape[axis]) * w.size(n["step"]) + w.size(n["start"])
    rows = w.term("Unsqueeze", rows, w.sizes([1]))
    front = [axis, *(other for other in range(len(shape)) if other != axis)]
    moved = [w.term("Transpose", term, perm=front) for term in (base, update)]
    written = w.term("ScatterND", moved[0], rows, moved[1])
    return w.term("Transpose", written, perm=[front.index(position) for position in range(len(shape))])


def _sort(w, n):
    sizes = w.sizes([n.shape[n["axis"]]])
    outputs = [name or w.fresh("unused") for name in n.outputs]
    w.node("TopK", [n.inputs[0], sizes], outputs, axis=n["axis"], largest=int(n["descending"]), sorted=1)


def _resize(w, n, x):
    nearest = n["mode"] == "nearest"
    place = "asymmetric" if nearest else "align_corners" if n["align_corners"] else "half_pixel"
    attrs = {"mode": "nearest" if nearest else "linear", "coordinate_transformation_mode": place}
    return w.term("Resize", x, "", "", w.sizes([*n.shape[:2], *n["sizes"]]), nearest_mode="floor", **attrs)


def _adaptive_means(w, size, count, dtype):
    """[count, size]: what each place weighs in each mean."""
    window, place = (w.term("Unsqueeze", _count(w, n), w.sizes([axis])) for n, axis in ((count, 1), (size, 0)))
    size, count = w.size(size), w.size(count)
    begin, end = window * size / count, (window * size + size + count - w.size(1)) / count
    inside = w.term("And", begin.at_most(place), place.less(end), dtype="bool")
    return inside.cast(dtype) / (end - begin).cast(dtype)


def _adaptive_average_pool(w, n, x):
    rows, cols = (_adaptive_means(w, n.input_types[0][1][i - 2], n["sizes"][i], x.dtype) for i in range(2))
    return w.term("MatMul", w.term("MatMul", rows, x), w.term("Transpose", cols, perm=[1, 0]))


def _im2col(w, n, x):
    (top, left, bottom, right), dilations, strides = n["pads"], n["dilations"], n["strides"]
    sizes = n.output_types[0][1][2:]
    x = w.term("Pad", x, w.sizes([0, 0, top, left, 0, 0, bottom, right]))
    # Axis 2 → (kh, h), then the former axis 3 → (kw, w).
    for dim, axis in ((0, 2), (1, 4)):
        taps = w.term("Unsqueeze", _count(w, sizes[dim]) * w.size(dilations[dim]), w.sizes([1]))
        places = taps + _count(w, sizes[2 + dim]) * w.size(strides[dim])
        x = w.term("Gather", x, places, axis=axis)
    return w.term("Transpose", x, perm=[0, 1, 2, 4, 3, 5])


def _col2im(w, n, windows):
    kernel, shape = n["kernel_shape"], n["shape"]
    columns = w.term("Reshape", windows, w.sizes([0, _product([shape[1], *kernel]), -1]))
    attrs = {name: n[name] for name in ("dilations", "pads", "strides")}
    return w.term("Col2Im", columns, w.sizes(shape[2:]), w.sizes(kernel), **attrs)


def _scatter_anew(w, n, x, indices, updates):
    base = w.term("ScatterElements", x, indices, updates, axis=n["axis"])
    return w.term("ScatterElements", base, indices, updates, axis=n["axis"], reduction=n["reduction"])


def _huber(w, n, x):
    bounded = w.term("Clip", x, w.scalar(-n["alpha"], x.dtype), w.scalar(n["alpha"], x.dtype))
    return bounded * (x - bounded * 0.5)


DEFINITIONS = {
    "Copy": _identity,
    "Detach": _identity,
    "Overwrite": _formula(lambda w, n, value, x: value),
    "Squeeze": _identity,  # without axes
    "Constant": _symbolic_constant,
    "ConstantOfShape": _symbolic_fill,
    "Range": _range,
    "Dropout": _formula(_dropout),
    "BiasDropout": _formula(_bias_dropout),
    "RandomUniform": _random("RandomUniformLike", "low", "high"),
    "RandomNormal": _random("RandomNormalLike", "mean", "scale"),
    "Bernoulli": _formula(lambda w, n, x: w.term("Bernoulli", x)),
    "Log1p": _formula(lambda w, n, x: w.term("Log", x + 1)),
    "Expm1": _formula(lambda w, n, x: w.term("Tanh", x * 0.5) * (w.term("Exp", x) + 1)),
    "Rsqrt": _formula(lambda w, n, x: w.term("Reciprocal", w.term("Sqrt", x))),
    "Trunc": _formula(lambda w, n, x: w.term("Sign", x) * w.term("Floor", w.term("Abs", x))),
    "Elu": _formula(_elu),
    "Softplus": _formula(_softplus),
    "Clip": clip,  # of these three some gradients are lowtide's own
    "ReduceMax": reduction,
    "ReduceMin": reduction,
    "Swish": _formula(lambda w, n, x: x * w.term("Sigmoid", x)),
    "Huber": _formula(_huber),
    "QuickGelu": _formula(lambda w, n, x: x * w.term("Sigmoid", x * n["alpha"])),
    "BiasGelu": _formula(_gelu("none")),
    "FastGelu": _formula(_gelu("tanh")),
    "NotEqual": _formula(lambda w, n, a, b: w.term("Not", a.equals(b))),
    "FloorDiv": _formula(_floor_div),
    "Mod": _formula(_float_mod),
    "Atan2": _formula(_atan2),
    "LayerNormalization": _layer_normalization,
    "SimplifiedLayerNormalization": _rms_normalization,
    "GroupNormalization": _group_normalization,
    "BatchNormalization": _batch_normalization,
    "BiasSoftmax": _formula(_bias_softmax),
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    "FusedMatMul": _formula(_fused_matmul),
    "Attention": _attention,
    "RotaryEmbedding": _formula(_rotary),
    "Recurrence": recurrence,
    "RepeatInterleave": _formula(_repeat_interleave),
    "Flip": _formula(_flip),
    "Roll": _formula(_roll),
    "Gather": _formula(_gather),
    "ScatterElements": _formula(_scatter_anew),
    "SliceScatter": _formula(_slice_scatter),
    "Sort": _sort,
    "Resize": _formula(_resize),
    "AdaptiveAveragePool": _formula(_adaptive_average_pool),
    "Im2Col": _formula(_im2col),
    "Col2Im": _formula(_col2im),
}
