"""ONNX's pointwise ops as lowtide's."""

import functools

from lowtide.errors import UnsupportedError

from .element_types import FLOATS, NAMES

_SAME = """Abs Neg Exp Log Sqrt Reciprocal Sin Cos Tan Atan Tanh Sigmoid Erf Relu Floor Ceil Round Sign Not BitwiseNot
    IsNaN IsInf HardSwish Mish Sub Div And Or Xor BitwiseAnd BitwiseOr BitwiseXor Equal Less LessOrEqual Greater
    GreaterOrEqual Where""".split()


def same(op):
    return lambda r, n: r.op(op, r.operands(n))


def _chain(op):
    """An op of any number of operands, by twos."""
    return lambda r, n: functools.reduce(lambda a, b: r.op(op, [a, b]), r.operands(n))


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
    x, like = r.operands(n)
    return r.op("Cast", [x], to=r.dtype(like))


def _pow(r, n):
    base, exponent = r.operands(n)
    if r.dtype(exponent) != r.dtype(base):
        exponent = r.op("Cast", [exponent], to=r.dtype(base))
    return r.op("Pow", [base, exponent])


def _mod(r, n):
    return r.op("Mod", r.operands(n), fmod=bool(n.get("fmod", 0)))


def _elu(r, n):
    return r.op("Elu", r.operands(n), alpha=n.get("alpha", 1.0), scale=1.0, input_scale=1.0)


def _selu(r, n):
    alpha, gamma = n.get("alpha", 1.67326319217681884765625), n.get("gamma", 1.05070102214813232421875)
    return r.op("Elu", r.operands(n), alpha=alpha, scale=gamma, input_scale=1.0)


def _softplus(r, n):
    return r.op("Softplus", r.operands(n), beta=1.0, threshold=20.0)


def _gelu(r, n):
    return r.op("FastGelu" if n.get("approximate", "none") == "tanh" else "Gelu", r.operands(n))


def _hard_sigmoid(r, n):
    (x,) = r.operands(n)
    alpha, beta = n.get("alpha", 0.2), n.get("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-7 and beta == 0.5:
        return r.op("HardSigmoid", [x])
    line = r.op("Add", [r.op("Mul", [x, r.scalar(alpha, x)]), r.scalar(beta, x)])
    return r.op("Clip", [line], min=0.0, max=1.0)


def _leaky_relu(r, n):
    return r.op("LeakyRelu", r.operands(n), alpha=n.get("alpha", 0.01))


def _p_relu(r, n):
    x, slope = r.operands(n)
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


def _celu(r, n):
    alpha = n.get("alpha", 1.0)
    return r.op("Elu", r.operands(n), alpha=alpha, scale=1.0, input_scale=1.0 / alpha)


def _swish(r, n):
    (x,) = r.operands(n)
    alpha = n.get("alpha", 1.0)
    return r.op("Swish", [x]) if alpha == 1 else r.op("QuickGelu", [x], alpha=alpha)


def _thresholded_relu(r, n):
    (x,) = r.operands(n)
    return r.op("Where", [r.op("Greater", [x, r.scalar(n.get("alpha", 1.0), x)]), x, r.scalar(0.0, x)])


def _softsign(r, n):
    (x,) = r.operands(n)
    return r.op("Div", [x, r.op("Add", [r.op("Abs", [x]), r.scalar(1.0, x)])])


def _shrink(r, n):
    (x,) = r.operands(n)
    bias, bound = r.scalar(n.get("bias", 0.0), x), n.get("lambd", 0.5)
    low = r.op("Where", [r.op("Less", [x, r.scalar(-bound, x)]), r.op("Add", [x, bias]), r.scalar(0.0, x)])
    return r.op("Where", [r.op("Greater", [x, r.scalar(bound, x)]), r.op("Sub", [x, bias]), low])


def _hyperbolic(combine):
    """(exp(x) ± exp(-x))/2, as (expm1(x) ± expm1(-x))/2 with what that leaves out."""

    def read(r, n):
        (x,) = r.operands(n)
        up, down = r.op("Expm1", [x]), r.op("Expm1", [r.op("Neg", [x])])
        total = r.op("Mul", [r.op(combine, [up, down]), r.scalar(0.5, x)])
        return r.op("Add", [total, r.scalar(1.0, x)]) if combine == "Add" else total

    return read


def _arc(sine):
    """asin(x) = atan2(x, sqrt(1 - x*x)), acos(x) with both exchanged."""

    def read(r, n):
        (x,) = r.operands(n)
        one = r.scalar(1.0, x)
        other = r.op("Sqrt", [r.op("Mul", [r.op("Sub", [one, x]), r.op("Add", [one, x])])])
        return r.op("Atan2", [x, other] if sine else [other, x])

    return read


POINTWISE = {
    "Celu": _celu,
    "Swish": _swish,
    "ThresholdedRelu": _thresholded_relu,
    "Softsign": _softsign,
    "Shrink": _shrink,
    "Sinh": _hyperbolic("Sub"),
    "Cosh": _hyperbolic("Add"),
    "Asin": _arc(sine=True),
    "Acos": _arc(sine=False),
    **{op: same(op) for op in _SAME},
    **{op: _chain(op) for op in ("Add", "Mul", "Max", "Min")},
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
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "LeakyRelu": _leaky_relu,
    "PRelu": _p_relu,
    "Clip": _clip,
    "Dropout": _dropout,
}
