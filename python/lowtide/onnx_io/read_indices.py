"""ONNX's ops that gather, scatter, join and pad."""

import numpy

from lowtide.errors import UnsupportedError

from .read_node import axes_of, axis_of


def _concat(r, n):
    operands = r.operands(n)
    return r.op("Concat", operands, axis=axis_of(n, len(r.shape(operands[0]))))


def _pad(r, n):
    x, pads = r.value(n.inputs[0]), list(r.sizes(n, 1))
    rank = len(r.shape(x))
    if (axes := r.sizes(n, 3)) is not None:
        every = [0] * (2 * rank)
        for place, axis in enumerate(axes_of(axes, rank)):
            every[axis], every[axis + rank] = pads[place], pads[place + len(axes)]
        pads = every
    value = r.array(n.inputs[2]) if n.has(2) else numpy.float32(0)
    if value is None:
        raise UnsupportedError("what it pads with depends on data")
    return r.op("Pad", [x], pads=pads, mode=n.get("mode", "constant"), value=float(value.item()))


def _tile(r, n):
    return r.op("Tile", [r.value(n.inputs[0])], repeats=r.sizes(n, 1))


def _trilu(r, n):
    k = r.sizes(n, 1, [0])[0]
    return r.op("Trilu", [r.value(n.inputs[0])], upper=bool(n.get("upper", 1)), k=k)


def _by_axis(op, *more):
    def read(r, n):
        operands = r.operands(n)
        attrs = {name: n.get(name, default) for name, default in more}
        return r.op(op, operands, axis=axis_of(n, len(r.shape(operands[0])), 0), **attrs)

    return read


def _gather_nd(r, n):
    if n.get("batch_dims", 0):
        raise UnsupportedError("batch_dims is set")
    return r.op("GatherND", r.operands(n))


def _scatter_nd(r, n):
    return r.op("ScatterND", r.operands(n), reduction=n.get("reduction", "none"))


INDICES = {
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
