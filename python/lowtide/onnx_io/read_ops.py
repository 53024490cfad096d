"""ONNX's ops as lowtide's: one function each, from the reader and a node to the value (or values) that it gives."""

import functools
import math

import numpy

from lowtide.errors import UnsupportedError

from .contents import equal, larger, minus, plus, product, quotient, smaller, times
from .element_types import FLOATS, NAMES, NAMES_OF_NUMPY
from .read_windows import WINDOWS

_SAME = """Abs Neg Exp Log Sqrt Reciprocal Sin Cos Tan Atan Tanh Sigmoid Erf Relu Floor Ceil Round Sign Not BitwiseNot
    IsNaN IsInf HardSwish Mish Sub Div And Or Xor BitwiseAnd BitwiseOr BitwiseXor Equal Less LessOrEqual Greater
    GreaterOrEqual Where""".split()
_REDUCTIONS = "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL2 ReduceLogSumExp".split()


def table(domain):
    """ONNX op → function(reader, node) → value or list of values."""
    return {"": OPS, "ai.onnx": OPS, "com.microsoft": MICROSOFT}.get(domain, {})


def constant_array(n):
    for name, value in n.attrs.items():
        if name == "value":
            return value
        if name in ("value_float", "value_floats"):
            return numpy.array(value, dtype=numpy.float32)
        if name in ("value_int", "value_ints"):
            return numpy.array(value, dtype=numpy.int64)
    raise UnsupportedError("it has no value that lowtide reads")


def fill_array(n):
    """The single element of ConstantOfShape's value."""
    value = n.get("value")
    return numpy.float32(0) if value is None else value.reshape(-1)[0]


def _operands(r, n):
    return [r.value(name) if name else None for name in n.inputs]


def _axis(n, rank, default=-1):
    axis = n.get("axis", default)
    return axis + rank if axis < 0 else axis


def _axes(axes, rank):
    return sorted(axis + rank if axis < 0 else axis for axis in axes)


# ---- pointwise


def _same(op):
    return lambda r, n: r.op(op, _operands(r, n))


def _chain(op):
    """An op of any number of operands, by twos."""
    return lambda r, n: functools.reduce(lambda a, b: r.op(op, [a, b]), _operands(r, n))


def _mean(r, n):
    total = _chain("Add")(r, n)
    return r.op("Div", [total, r.scalar(len(n.inputs), total)])


def _identity(r, n):
    return r.value(n.inputs[0])


def _cast(r, n):
    to = NAMES.get(n.get("to"))
    if to is None:
        raise UnsupportedError("it casts to a type that lowtide lacks")
    return r.op("Cast", [r.value(n.inputs[0])], to=to)


def _cast_like(r, n):
    x, like = _operands(r, n)
    return r.op("Cast", [x], to=r.dtype(like))


def _pow(r, n):
    base, exponent = _operands(r, n)
    if r.dtype(exponent) != r.dtype(base):
        exponent = r.op("Cast", [exponent], to=r.dtype(base))
    return r.op("Pow", [base, exponent])


def _mod(r, n):
    return r.op("Mod", _operands(r, n), fmod=bool(n.get("fmod", 0)))


def _elu(r, n):
    return r.op("Elu", _operands(r, n), alpha=n.get("alpha", 1.0), scale=1.0, input_scale=1.0)


def _selu(r, n):
    alpha, gamma = n.get("alpha", 1.67326319217681884765625), n.get("gamma", 1.05070102214813232421875)
    return r.op("Elu", _operands(r, n), alpha=alpha, scale=gamma, input_scale=1.0)


def _softplus(r, n):
    return r.op("Softplus", _operands(r, n), beta=1.0, threshold=20.0)


def _gelu(approximate=None):
    return lambda r, n: r.op("Gelu", _operands(r, n), approximate=approximate or n.get("approximate", "none"))


def _hard_sigmoid(r, n):
    (x,) = _operands(r, n)
    alpha, beta = n.get("alpha", 0.2), n.get("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-7 and beta == 0.5:
        return r.op("HardSigmoid", [x])
    line = r.op("Add", [r.op("Mul", [x, r.scalar(alpha, x)]), r.scalar(beta, x)])
    return r.op("Clip", [line], min=0.0, max=1.0)


def _leaky_relu(r, n):
    return r.op("LeakyRelu", _operands(r, n), alpha=n.get("alpha", 0.01))


def _p_relu(r, n):
    x, slope = _operands(r, n)
    zero = r.scalar(0.0, x)
    return r.op("Add", [r.op("Max", [x, zero]), r.op("Mul", [slope, r.op("Min", [x, zero])])])


def _clip(r, n):
    x = r.value(n.inputs[0])
    bounds = [r.array(n.inputs[index]) if n.has(index) else None for index in (1, 2)]
    for op, index in (("Max", 1), ("Min", 2)):
        if n.has(index) and (bounds[index - 1] is None or r.dtype(x) not in FLOATS):
            x = r.op(op, [x, r.value(n.inputs[index])])
            bounds[index - 1] = None
    low, high = (None if bound is None else float(bound.item()) for bound in bounds)
    return x if low is None and high is None else r.op("Clip", [x], min=low, max=high)


def _dropout(r, n):
    x = r.value(n.inputs[0])
    training = r.array(n.inputs[2]) if n.has(2) else None
    if n.has(2) and training is None:
        raise UnsupportedError("whether it drops depends on data")
    if n.wants(1):
        raise UnsupportedError("its mask is asked for")
    ratio = float(r.array(n.inputs[1]).item()) if n.has(1) else 0.5
    if training is None or not training.item() or ratio == 0:
        return x
    r.streams += 1
    return r.op("Dropout", [x], ratio=ratio, stream=r.streams - 1)


# ---- views and shapes


def _target(r, n, index=1):
    return r.sizes(n, index)


def _reshape(r, n):
    x, target = r.value(n.inputs[0]), list(_target(r, n))
    shape = r.shape(x)
    if not n.get("allowzero", 0):
        target = [shape[axis] if size == 0 else size for axis, size in enumerate(target)]
    if -1 in target:
        rest = product(size for size in target if size != -1)
        target[target.index(-1)] = quotient(product(shape), rest)
    return r.op("Reshape", [x], shape=target)


def _flatten(r, n):
    x = r.value(n.inputs[0])
    shape = r.shape(x)
    axis = _axis(n, len(shape), 1)
    return r.op("Reshape", [x], shape=[product(shape[:axis]), product(shape[axis:])])


def _transpose(r, n):
    x = r.value(n.inputs[0])
    return r.op("Transpose", [x], perm=n.get("perm", list(reversed(range(len(r.shape(x)))))))


def _unsqueeze(r, n):
    x, axes = r.value(n.inputs[0]), _target(r, n)
    return r.op("Unsqueeze", [x], axes=_axes(axes, len(r.shape(x)) + len(axes)))


def _squeeze(r, n):
    x = r.value(n.inputs[0])
    shape = r.shape(x)
    axes = r.sizes(n, 1)
    axes = [axis for axis, size in enumerate(shape) if size == 1] if axes is None else _axes(axes, len(shape))
    return r.op("Squeeze", [x], axes=axes)


def _expand(r, n):
    x, target = r.value(n.inputs[0]), list(_target(r, n))
    shape = r.shape(x)
    rank = max(len(shape), len(target))
    shape, target = ([1] * (rank - len(sizes)) + sizes for sizes in (shape, target))
    return r.op(
        "Expand", [x], shape=[size if wanted == 1 else wanted for size, wanted in zip(shape, target, strict=True)]
    )


def _slice(r, n):
    x = r.value(n.inputs[0])
    starts, ends = r.sizes(n, 1), r.sizes(n, 2)
    axes = r.sizes(n, 3, list(range(len(starts))))
    steps = r.sizes(n, 4, [1] * len(starts))
    rank, flipped = len(r.shape(x)), []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis += rank if axis < 0 else 0
        size = r.shape(x)[axis]
        if step < 0:
            if (start != -1 and not (isinstance(start, int) and start >= 2**31 - 1)) or step != -1 or not _far(end):
                raise UnsupportedError("a negative step is read for whole axes only")
            flipped.append(axis)
            continue
        if not r.ours:
            start, end = _bound(start, size), _bound(end, size)
        if isinstance(start, int) and isinstance(end, int):
            end = max(start, end)
        if start != 0 or end != size or step != 1:
            x = r.op("Slice", [x], axis=axis, start=start, end=end, step=step)
    return r.op("Flip", [x], axes=sorted(flipped)) if flipped else x


def _far(end):
    return isinstance(end, int) and end < -(2**31) + 2


def _bound(bound, size):
    """A start or end as the model writes it, in [0, size]. One over symbols is taken to lie there."""
    if not isinstance(bound, int):
        return bound
    if bound < 0:
        return max(0, bound + size) if isinstance(size, int) else plus(size, bound)
    if bound >= 2**31 - 1:
        return size
    if isinstance(size, int):
        return min(bound, size)
    return bound if bound <= 1 else smaller(bound, size)


def _split(r, n):
    x = r.value(n.inputs[0])
    shape = r.shape(x)
    axis = _axis(n, len(shape), 0)
    sizes = r.sizes(n, 1)
    if sizes is None:
        count = n.get("num_outputs", len(n.outputs))
        each = quotient(plus(shape[axis], count - 1), count)
        sizes = [each] * (count - 1) + [minus(shape[axis], times(each, count - 1))]
    start, parts = 0, []
    for size in sizes:
        end = plus(start, size)
        parts.append(r.op("Slice", [x], axis=axis, start=start, end=end, step=1))
        start = end
    return parts


def _constant_of_shape(r, n):
    value = fill_array(n)
    return r.fill(value, _target(r, n, 0), NAMES_OF_NUMPY[value.dtype])


def _range(r, n):
    arrays = [r.array(name) for name in n.inputs]
    dtype = None if arrays[0] is None else NAMES_OF_NUMPY.get(arrays[0].dtype)
    if dtype in FLOATS and None not in [None if array is None else 0 for array in arrays]:
        start, limit, step = (float(array.item()) for array in arrays)
        numel = max(0, math.ceil((limit - start) / step))
        return r.op("Range", [], dtype=dtype, numel=numel, start=start, step=step)
    bounds = [r.sizes(n, index)[0] for index in range(3)]
    start, limit, step = bounds
    if not isinstance(step, int) or step <= 0:
        raise UnsupportedError("its step is not known to be positive")
    numel = quotient(plus(minus(limit, start), step - 1), step)
    numel = larger(numel, 0) if isinstance(numel, int) else numel
    dtype = r.contents(n.inputs[0]).dtype
    return r.op("Range", [], dtype=dtype, numel=numel, int_start=start, int_step=step)


def _shape_as_tensor(r, n):
    raise UnsupportedError("its sizes cannot be worked out before the model runs")


# ---- reductions and rows


def _reduce_axes(r, n, rank):
    axes = r.sizes(n, 1) if n.has(1) else n.get("axes")
    if not axes:
        return [] if n.get("noop_with_empty_axes", 0) else list(range(rank))
    return _axes(axes, rank)


def _reduce(op, prepare=None, finish=None):
    def read(r, n):
        x = r.value(n.inputs[0])
        axes = _reduce_axes(r, n, len(r.shape(x)))
        if prepare:
            x = prepare(r, x)
        if axes:
            x = r.op(op, [x], axes=axes, keepdims=bool(n.get("keepdims", 1)))
        return finish(r, x) if finish else x

    return read


def _arg_reduce(op):
    def read(r, n):
        x = r.value(n.inputs[0])
        if n.get("select_last_index", 0):
            raise UnsupportedError("select_last_index is set")
        return r.op(op, [x], axis=_axis(n, len(r.shape(x)), 0), keepdims=bool(n.get("keepdims", 1)))

    return read


def _cum_sum(r, n):
    x, axis = r.value(n.inputs[0]), r.sizes(n, 1)[0]
    if n.get("exclusive", 0):
        raise UnsupportedError("exclusive is set")
    axis += len(r.shape(x)) if axis < 0 else 0
    return r.op("CumSum", [x], axis=axis, reverse=bool(n.get("reverse", 0)))


def _top_k(r, n):
    x = r.value(n.inputs[0])
    axis, (k,), largest = _axis(n, len(r.shape(x))), r.sizes(n, 1), bool(n.get("largest", 1))
    wanted = [n.wants(0), n.wants(1)]
    if equal(k, r.shape(x)[axis]):
        return r.ops("Sort", [x], wanted, axis=axis, descending=largest)
    return r.ops("TopK", [x], wanted, axis=axis, k=k, largest=largest)


def _row(op):
    def read(r, n):
        x = r.value(n.inputs[0])
        y = r.op(op, [x], axis=_axis(n, len(r.shape(x))))
        if op == "LogSoftmax":
            r.log_probabilities.add(y)
        return y

    return read


def _layer_normalization(op, statistics):
    """With `statistics` further outputs, which ONNX keeps in x's rank."""

    def read(r, n):
        operands = _operands(r, n)
        rank = len(r.shape(operands[0]))
        axis, epsilon = _axis(n, rank), n.get("epsilon", 1e-5)
        results = r.ops(op, operands, axis=axis, epsilon=epsilon)
        axes = list(range(axis, rank))
        wide = [r.op("Unsqueeze", [value], axes=axes) for i, value in enumerate(results[1:], 1) if n.wants(i)]
        return [results[0], *wide][: 1 + statistics]

    return read


def _group_normalization(r, n):
    x, *affine = _operands(r, n)
    groups = n.get("num_groups")
    if equal(r.shape(affine[0])[0], r.shape(x)[1]) is not True:
        raise UnsupportedError("its scale is one number a group (opset 18), expected one a channel (opset 21)")
    return r.op("GroupNormalization", [x, *affine], num_groups=groups, epsilon=n.get("epsilon", 1e-5))


def _instance_normalization(r, n):
    operands = _operands(r, n)
    channels = r.shape(operands[0])[1]
    return r.op("GroupNormalization", operands, num_groups=channels, epsilon=n.get("epsilon", 1e-5))


def _batch_normalization(r, n):
    """Of inference: one scale and one shift a channel."""
    if n.get("training_mode", 0):
        raise UnsupportedError("training_mode is set: ONNX's running variance is another one than PyTorch's")
    x, weight, bias = (r.value(name) for name in n.inputs[:3])
    mean, variance = (r.value(name, kind="buffer") for name in n.inputs[3:5])
    root = r.op("Rsqrt", [r.op("Add", [variance, r.scalar(n.get("epsilon", 1e-5), variance)])])
    scale = r.op("Mul", [root, weight])
    shift = r.op("Sub", [bias, r.op("Mul", [mean, scale])])
    across = list(range(1, len(r.shape(x)) - 1))
    if across:
        scale, shift = (r.op("Unsqueeze", [term], axes=across) for term in (scale, shift))
    return r.op("Add", [r.op("Mul", [x, scale]), shift])


def _cross_entropy(r, n):
    operands = _operands(r, n)
    attrs = {"reduction": n.get("reduction", "mean"), "ignore_index": n.get("ignore_index", -100)}
    loss = r.ops("SoftmaxCrossEntropyLoss", operands, label_smoothing=0.0, **attrs)[0]
    return [loss, r.op("LogSoftmax", operands[:1], axis=1)] if n.wants(1) else loss


def _nll_loss(r, n):
    """Log-probabilities have themselves as log-softmax: this is their cross-entropy as logits."""
    if r.value(n.inputs[0]) not in r.log_probabilities:
        raise UnsupportedError("what it takes is no LogSoftmax")
    return _cross_entropy(r, n)


# ---- matrix multiply


def _matmul(r, n):
    a, b = _operands(r, n)
    squeezed = []
    if len(r.shape(a)) == 1:
        a = r.op("Unsqueeze", [a], axes=[0])
        squeezed.append(-2)
    if len(r.shape(b)) == 1:
        b = r.op("Unsqueeze", [b], axes=[1])
        squeezed.append(-1)
    y = r.op("MatMul", [a, b])
    return r.op("Squeeze", [y], axes=_axes(squeezed, len(r.shape(y)))) if squeezed else y


def _gemm(r, n):
    flags = {name: bool(n.get(name, 0)) for name in ("transA", "transB")}
    return r.op("Gemm", _operands(r, n), alpha=n.get("alpha", 1.0), beta=n.get("beta", 1.0), **flags)


def _fused_matmul(r, n):
    if n.get("transBatchA", 0) or n.get("transBatchB", 0):
        raise UnsupportedError("it transposes batch dims")
    flags = {name: bool(n.get(name, 0)) for name in ("transA", "transB")}
    return r.op("FusedMatMul", _operands(r, n), alpha=n.get("alpha", 1.0), **flags)


# ---- indices


def _concat(r, n):
    operands = _operands(r, n)
    return r.op("Concat", operands, axis=_axis(n, len(r.shape(operands[0]))))


def _pad(r, n):
    x, pads = r.value(n.inputs[0]), list(r.sizes(n, 1))
    rank = len(r.shape(x))
    if (axes := r.sizes(n, 3)) is not None:
        every = [0] * (2 * rank)
        for place, axis in enumerate(_axes(axes, rank)):
            every[axis], every[axis + rank] = pads[place], pads[place + len(axes)]
        pads = every
    value = r.array(n.inputs[2]) if n.has(2) else numpy.float32(0)
    if value is None:
        raise UnsupportedError("what it pads with depends on data")
    return r.op("Pad", [x], pads=pads, mode=n.get("mode", "constant"), value=float(value.item()))


def _tile(r, n):
    return r.op("Tile", [r.value(n.inputs[0])], repeats=_target(r, n))


def _trilu(r, n):
    k = r.sizes(n, 1, [0])[0]
    return r.op("Trilu", [r.value(n.inputs[0])], upper=bool(n.get("upper", 1)), k=k)


def _by_axis(op, *more):
    def read(r, n):
        operands = _operands(r, n)
        attrs = {name: n.get(name, default) for name, default in more}
        return r.op(op, operands, axis=_axis(n, len(r.shape(operands[0])), 0), **attrs)

    return read


def _gather_nd(r, n):
    if n.get("batch_dims", 0):
        raise UnsupportedError("batch_dims is set")
    return r.op("GatherND", _operands(r, n))


def _scatter_nd(r, n):
    return r.op("ScatterND", _operands(r, n), reduction=n.get("reduction", "none"))


# ---- com.microsoft


def _bias_gelu(r, n):
    return r.op("BiasGelu", _operands(r, n))


def _quick_gelu(r, n):
    return r.op("QuickGelu", _operands(r, n), alpha=n.get("alpha", 1.702))


_RMS = _layer_normalization("SimplifiedLayerNormalization", 1)
OPS = {
    **{op: _same(op) for op in _SAME},
    **{op: _chain(op) for op in ("Add", "Mul", "Max", "Min")},
    **{op: _reduce(op) for op in _REDUCTIONS},
    **WINDOWS,
    "Sum": _chain("Add"),
    "Mean": _mean,
    "Identity": _identity,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Pow": _pow,
    "Mod": _mod,
    "Elu": _elu,
    "Selu": _selu,
    "Softplus": _softplus,
    "Gelu": _gelu(),
    "HardSigmoid": _hard_sigmoid,
    "LeakyRelu": _leaky_relu,
    "PRelu": _p_relu,
    "Clip": _clip,
    "Dropout": _dropout,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Expand": _expand,
    "Slice": _slice,
    "Split": _split,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Shape": _shape_as_tensor,
    "ReduceL1": _reduce("ReduceSum", prepare=lambda r, x: r.op("Abs", [x])),
    "ReduceSumSquare": _reduce("ReduceSum", prepare=lambda r, x: r.op("Mul", [x, x])),
    "ReduceLogSum": _reduce("ReduceSum", finish=lambda r, x: r.op("Log", [x])),
    "ArgMax": _arg_reduce("ArgMax"),
    "ArgMin": _arg_reduce("ArgMin"),
    "CumSum": _cum_sum,
    "TopK": _top_k,
    "Softmax": _row("Softmax"),
    "LogSoftmax": _row("LogSoftmax"),
    "LayerNormalization": _layer_normalization("LayerNormalization", 2),
    "RMSNormalization": _RMS,
    "SimplifiedLayerNormalization": _RMS,
    "GroupNormalization": _group_normalization,
    "InstanceNormalization": _instance_normalization,
    "BatchNormalization": _batch_normalization,
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    "NegativeLogLikelihoodLoss": _nll_loss,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Concat": _concat,
    "Pad": _pad,
    "Tile": _tile,
    "Trilu": _trilu,
    "Gather": _by_axis("Gather"),
    "GatherElements": _by_axis("GatherElements"),
    "ScatterElements": _by_axis("ScatterElements", ("reduction", "none")),
    "GatherND": _gather_nd,
    "ScatterND": _scatter_nd,
}
MICROSOFT = {
    "Gelu": _gelu("none"),
    "BiasGelu": _bias_gelu,
    "FastGelu": _same("FastGelu"),
    "QuickGelu": _quick_gelu,
    "FusedMatMul": _fused_matmul,
}
