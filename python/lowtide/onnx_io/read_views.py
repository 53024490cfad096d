"""ONNX's ops that move numbers, make shapes or fill them."""

import math

from lowtide.errors import UnsupportedError

from .contents import larger, minus, plus, product, quotient, smaller, times
from .element_types import FLOATS, NAMES, NAMES_OF_NUMPY
from .read_node import axes_of, axis_of, fill_array


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
    axis = axis_of(n, len(shape), 1)
    return r.op("Reshape", [x], shape=[product(shape[:axis]), product(shape[axis:])])


def _transpose(r, n):
    x = r.value(n.inputs[0])
    return r.op("Transpose", [x], perm=n.get("perm", list(reversed(range(len(r.shape(x)))))))


def _unsqueeze(r, n):
    x, axes = r.value(n.inputs[0]), _target(r, n)
    return r.op("Unsqueeze", [x], axes=axes_of(axes, len(r.shape(x)) + len(axes)))


def _squeeze(r, n):
    x = r.value(n.inputs[0])
    shape = r.shape(x)
    axes = r.sizes(n, 1)
    axes = [axis for axis, size in enumerate(shape) if size == 1] if axes is None else axes_of(axes, len(shape))
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
    axis = axis_of(n, len(shape), 0)
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


def _depth_to_space(r, n):
    x, block = r.value(n.inputs[0]), n.get("blocksize")
    batch, channels, height, width = r.shape(x)
    rest = quotient(channels, block * block)
    if n.get("mode", "DCR") == "DCR":
        shape, perm = [batch, block, block, rest, height, width], [0, 3, 4, 1, 5, 2]
    else:
        shape, perm = [batch, rest, block, block, height, width], [0, 1, 4, 2, 5, 3]
    parts = r.op("Transpose", [r.op("Reshape", [x], shape=shape)], perm=perm)
    return r.op("Reshape", [parts], shape=[batch, rest, times(height, block), times(width, block)])


def _space_to_depth(r, n):
    x, block = r.value(n.inputs[0]), n.get("blocksize")
    batch, channels, height, width = r.shape(x)
    height, width = quotient(height, block), quotient(width, block)
    parts = r.op("Reshape", [x], shape=[batch, channels, height, block, width, block])
    parts = r.op("Transpose", [parts], perm=[0, 3, 5, 1, 2, 4])
    return r.op("Reshape", [parts], shape=[batch, times(channels, block * block), height, width])


def _one_hot(r, n):
    indices, (depth,) = r.value(n.inputs[0]), r.sizes(n, 1)
    values = r.array(n.inputs[2])
    if values is None or r.dtype(indices) != "i64":
        raise UnsupportedError("its two values depend on data, or its indices are not i64")
    rank = len(r.shape(indices)) + 1
    axis = axis_of(n, rank)
    zero = r.scalar(0, indices)
    whole = r.op("Where", [r.op("Less", [indices, zero]), r.op("Add", [indices, _size(r, depth)]), indices])
    classes = r.op("Range", [], dtype="i64", numel=depth, int_start=0, int_step=1)
    classes = r.op("Reshape", [classes], shape=[1] * axis + [depth] + [1] * (rank - 1 - axis))
    hit = r.op("Equal", [r.op("Unsqueeze", [whole], axes=[axis]), classes])
    off, on = (r.fill(value, [], NAMES_OF_NUMPY[values.dtype]) for value in values)
    return r.op("Where", [hit, on, off])


def _size(r, size):
    return r.op("Constant", [], dtype="i64", int_value=size)


def _eye_like(r, n):
    x = r.value(n.inputs[0])
    dtype = NAMES.get(n.get("dtype")) or r.dtype(x)
    rows, columns = (r.op("Range", [], dtype="i64", numel=size, int_start=0, int_step=1) for size in r.shape(x))
    rows = r.op("Add", [r.op("Unsqueeze", [rows], axes=[1]), r.scalar(n.get("k", 0), rows)])
    return r.op("Cast", [r.op("Equal", [rows, r.op("Unsqueeze", [columns], axes=[0])])], to=dtype)


VIEWS = {
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "OneHot": _one_hot,
    "EyeLike": _eye_like,
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
}
