"""ONNX's reductions, normalisations, softmax and losses."""

from lowtide.errors import UnsupportedError

from .contents import equal
from .read_node import axes_of, axis_of

_REDUCTIONS = "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL2 ReduceLogSumExp".split()


def _reduce_axes(r, n, rank):
    axes = r.sizes(n, 1) if n.has(1) else n.get("axes")
    if not axes:
        return [] if n.get("noop_with_empty_axes", 0) else list(range(rank))
    return axes_of(axes, rank)


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
        return r.op(op, [x], axis=axis_of(n, len(r.shape(x)), 0), keepdims=bool(n.get("keepdims", 1)))

    return read


def _cum_sum(r, n):
    x, axis = r.value(n.inputs[0]), r.sizes(n, 1)[0]
    if n.get("exclusive", 0):
        raise UnsupportedError("exclusive is set")
    axis += len(r.shape(x)) if axis < 0 else 0
    return r.op("CumSum", [x], axis=axis, reverse=bool(n.get("reverse", 0)))


def _top_k(r, n):
    x = r.value(n.inputs[0])
    axis, (k,), largest = axis_of(n, len(r.shape(x))), r.sizes(n, 1), bool(n.get("largest", 1))
    wanted = [n.wants(0), n.wants(1)]
    if equal(k, r.shape(x)[axis]):
        return r.ops("Sort", [x], wanted, axis=axis, descending=largest)
    return r.ops("TopK", [x], wanted, axis=axis, k=k, largest=largest)


def _row(op):
    def read(r, n):
        x = r.value(n.inputs[0])
        y = r.op(op, [x], axis=axis_of(n, len(r.shape(x))))
        if op == "LogSoftmax":
            r.log_probabilities.add(y)
        return y

    return read


def _layer_normalization(op, statistics):
    """With `statistics` further outputs, which ONNX keeps in x's rank."""

    def read(r, n):
        operands = r.operands(n)
        rank = len(r.shape(operands[0]))
        axis, epsilon = axis_of(n, rank), n.get("epsilon", 1e-5)
        results = r.ops(op, operands, axis=axis, epsilon=epsilon)
        axes = list(range(axis, rank))
        wide = [r.op("Unsqueeze", [value], axes=axes) for i, value in enumerate(results[1:], 1) if n.wants(i)]
        return [results[0], *wide][: 1 + statistics]

    return read


def _group_normalization(r, n):
    x, *affine = r.operands(n)
    groups = n.get("num_groups")
    if equal(r.shape(affine[0])[0], r.shape(x)[1]) is not True:
        raise UnsupportedError("its scale is one number a group (opset 18), expected one a channel (opset 21)")
    return r.op("GroupNormalization", [x, *affine], num_groups=groups, epsilon=n.get("epsilon", 1e-5))


def _instance_normalization(r, n):
    operands = r.operands(n)
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
    operands = r.operands(n)
    attrs = {"reduction": n.get("reduction", "mean"), "ignore_index": n.get("ignore_index", -100)}
    loss = r.ops("SoftmaxCrossEntropyLoss", operands, label_smoothing=0.0, **attrs)[0]
    if r.dtype(loss) != r.dtype(operands[0]):  # of half logits lowtide's is f32
        loss = r.op("Cast", [loss], to=r.dtype(operands[0]))
    return [loss, r.op("LogSoftmax", operands[:1], axis=1)] if n.wants(1) else loss


def _nll_loss(r, n):
    """Log-probabilities have themselves as log-softmax: this is their cross-entropy as logits."""
    if r.value(n.inputs[0]) not in r.log_probabilities:
        raise UnsupportedError("what it takes is no LogSoftmax")
    return _cross_entropy(r, n)


_RMS = _layer_normalization("SimplifiedLayerNormalization", 1)


def _lp_normalization(r, n):
    x = r.value(n.inputs[0])
    axis, p = axis_of(n, len(r.shape(x))), n.get("p", 2)
    if p == 2:
        return r.op("Div", [x, r.op("ReduceL2", [x], axes=[axis], keepdims=True)])
    return r.op("Div", [x, r.op("ReduceSum", [r.op("Abs", [x])], axes=[axis], keepdims=True)])


def _mean_variance_normalization(r, n):
    x = r.value(n.inputs[0])
    axes = axes_of(n.get("axes", [0, 2, 3]), len(r.shape(x)))
    centred = r.op("Sub", [x, r.op("ReduceMean", [x], axes=axes, keepdims=True)])
    variance = r.op("ReduceMean", [r.op("Mul", [centred, centred])], axes=axes, keepdims=True)
    return r.op("Div", [centred, r.op("Add", [r.op("Sqrt", [variance]), r.scalar(1e-9, x)])])


ROWS = {
    "LpNormalization": _lp_normalization,
    "MeanVarianceNormalization": _mean_variance_normalization,
    **{op: _reduce(op) for op in _REDUCTIONS},
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
}
