"""ONNX's convolutions, poolings and resizing as lowtide's ops."""

from lowtide.errors import UnsupportedError

from .contents import minus, plus, times


def _pads(r, n, x, kernel, strides, dilations):
    """Begins then ends. auto_pad needs constant sizes."""
    mode = n.get("auto_pad", "NOTSET")
    if mode in ("NOTSET", "VALID"):
        return n.get("pads", [0] * (2 * len(kernel))) if mode == "NOTSET" else [0] * (2 * len(kernel))
    begins, ends = [], []
    for size, width, stride, dilation in zip(r.shape(x)[2:], kernel, strides, dilations, strict=True):
        if not isinstance(size, int):
            raise UnsupportedError(f"auto_pad {mode} of a size that is not constant")
        total = max(0, (-(-size // stride) - 1) * stride + dilation * (width - 1) + 1 - size)
        small, large = total // 2, total - total // 2
        begins.append(small if mode == "SAME_UPPER" else large)
        ends.append(large if mode == "SAME_UPPER" else small)
    return begins + ends


def _window(r, n, x, kernel):
    strides, dilations = (n.get(name, [1] * len(kernel)) for name in ("strides", "dilations"))
    return {"strides": strides, "pads": _pads(r, n, x, kernel, strides, dilations)}, dilations


def _conv(r, n):
    operands = [r.value(name) if name else None for name in n.inputs]
    kernel = r.shape(operands[1])[2:]
    attrs, dilations = _window(r, n, operands[0], kernel)
    if all(isinstance(size, int) for size in kernel):
        attrs["kernel_shape"] = kernel
    return r.op("Conv", operands, dilations=dilations, group=n.get("group", 1), **attrs)


def _conv_transpose(r, n):
    """A convolution, in unit steps, of x with zeros between its elements and a kernel that is turned round."""
    x, weight, *bias = r.operands(n)
    shape, (_, each, *kernel) = r.shape(x), r.shape(weight)
    spatial, group = len(kernel), n.get("group", 1)
    strides, dilations = (n.get(name, [1] * spatial) for name in ("strides", "dilations"))
    if not all(isinstance(width, int) for width in (*kernel, each)):
        raise UnsupportedError("the sizes of its kernel are not constant")
    spans = [dilation * (width - 1) for dilation, width in zip(dilations, kernel, strict=True)]
    pads, more = _transposed_pads(n, shape[2:], strides, spans)
    for axis, stride in enumerate(strides, 2):
        x = _spread(r, x, axis, stride)
    begins = [span - pad for span, pad in zip(spans, pads, strict=False)]
    ends = [span - pad + end for span, pad, end in zip(spans, pads[spatial:], more, strict=True)]
    for axis in range(spatial):  # a crop where more is cut off than the kernel reaches
        size = r.shape(x)[axis + 2]
        first, last = max(0, -begins[axis]), plus(size, min(0, ends[axis]))
        if first or ends[axis] < 0:
            x = r.op("Slice", [x], axis=axis + 2, start=first, end=last, step=1)
    pads = [0, 0, *(max(0, begin) for begin in begins), 0, 0, *(max(0, end) for end in ends)]
    if any(pads):
        x = r.op("Pad", [x], pads=pads, mode="constant", value=0.0)
    channels = r.shape(weight)[0]
    parts = r.op("Reshape", [weight], shape=[group, channels // group, each, *kernel])
    parts = r.op("Transpose", [parts], perm=[0, 2, 1, *range(3, 3 + spatial)])
    parts = r.op("Reshape", [parts], shape=[group * each, channels // group, *kernel])
    parts = r.op("Flip", [parts], axes=list(range(2, 2 + spatial)))
    ones, none = [1] * spatial, [0] * (2 * spatial)
    attrs = {"dilations": dilations, "group": group, "kernel_shape": kernel}
    return r.op("Conv", [x, parts, *bias], strides=ones, pads=none, **attrs)


def _transposed_pads(n, sizes, strides, spans):
    """(what is cut off, begins then ends; what is added at the ends)."""
    spatial = len(strides)
    more, mode = n.get("output_padding", [0] * spatial), n.get("auto_pad", "NOTSET")
    wanted = n.get("output_shape")
    if wanted is None and mode not in ("SAME_UPPER", "SAME_LOWER"):
        return n.get("pads", [0] * (2 * spatial)) if mode == "NOTSET" else [0] * (2 * spatial), more
    begins, ends = [], []
    for axis, (size, stride, span) in enumerate(zip(sizes, strides, spans, strict=True)):
        if wanted is not None and not isinstance(size, int):
            raise UnsupportedError("output_shape is set, and the size that it is made of is not constant")
        # stride*(size - 1) + more + span + 1 - what comes out
        total = more[axis] + span + 1 - stride
        if wanted is not None:
            total += stride * size - wanted[-spatial:][axis]
        small, large = total // 2, total - total // 2
        begins.append(small if mode == "SAME_UPPER" else large)
        ends.append(large if mode == "SAME_UPPER" else small)
    return begins + ends, more


def _spread(r, x, axis, stride):
    """stride - 1 zeros between the elements."""
    if stride == 1:
        return x
    shape = r.shape(x)
    wide = r.op("Unsqueeze", [x], axes=[axis + 1])
    pads = [0] * (2 * len(shape) + 2)
    pads[len(shape) + 1 + axis + 1] = stride - 1
    wide = r.op("Pad", [wide], pads=pads, mode="constant", value=0.0)
    long = times(shape[axis], stride)
    wide = r.op("Reshape", [wide], shape=[*shape[:axis], long, *shape[axis + 1 :]])
    return r.op("Slice", [wide], axis=axis, start=0, end=minus(long, stride - 1), step=1)


def _max_pool(r, n):
    x, kernel = r.value(n.inputs[0]), n.get("kernel_shape")
    if n.wants(1):
        raise UnsupportedError("its indices are asked for")
    attrs, dilations = _window(r, n, x, kernel)
    ceil = bool(n.get("ceil_mode", 0))
    return r.op("MaxPool", [x], kernel_shape=kernel, dilations=dilations, ceil_mode=ceil, **attrs)


def _average_pool(r, n):
    x, kernel = r.value(n.inputs[0]), n.get("kernel_shape")
    attrs, dilations = _window(r, n, x, kernel)
    if set(dilations) - {1}:
        raise UnsupportedError("it has dilations")
    flags = {name: bool(n.get(name, 0)) for name in ("ceil_mode", "count_include_pad")}
    return r.op("AveragePool", [x], kernel_shape=kernel, **attrs, **flags)


def _global_pool(op):
    def read(r, n):
        x = r.value(n.inputs[0])
        return r.op(op, [x], axes=list(range(2, len(r.shape(x)))), keepdims=True)

    return read


def _resize(r, n):
    x = r.value(n.inputs[0])
    shape = r.shape(x)
    sizes = r.sizes(n, 3)
    if sizes is None:
        scales = r.array(n.inputs[2]) if n.has(2) else None
        if scales is None or not all(isinstance(size, int) for size in shape[1:]):
            raise UnsupportedError("its scales or the sizes that they act on are not constant")
        sizes = [shape[0], *(int(size * scale) for size, scale in zip(shape[1:], scales[1:], strict=True))]
    place = n.get("coordinate_transformation_mode", "half_pixel")
    linear = n.get("mode", "nearest") == "linear" and place in ("half_pixel", "pytorch_half_pixel", "align_corners")
    nearest = (n.get("mode", "nearest"), place, n.get("nearest_mode")) == ("nearest", "asymmetric", "floor")
    if len(shape) != 4 or n.get("antialias", 0) or not (linear or nearest):
        raise UnsupportedError("lowtide resizes images as PyTorch's bilinear and nearest do")
    mode = "nearest" if nearest else "bilinear"
    return r.op("Resize", [x], sizes=list(sizes[2:]), mode=mode, align_corners=place == "align_corners")


def _col2im(r, n):
    x = r.value(n.inputs[0])
    image, kernel = r.array(n.inputs[1]), r.array(n.inputs[2])
    if image is None or kernel is None or len(image) != 2:
        raise UnsupportedError("lowtide sums windows of images of two dims, whose sizes are constant")
    image, kernel = image.tolist(), kernel.tolist()
    strides, dilations, pads = n.get("strides", [1, 1]), n.get("dilations", [1, 1]), n.get("pads", [0, 0, 0, 0])
    places = [
        (image[i] + pads[i] + pads[2 + i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1 for i in range(2)
    ]
    batch, columns = r.shape(x)[:2]
    if not isinstance(columns, int):
        raise UnsupportedError("the number of its channels is not constant")
    channels = columns // (kernel[0] * kernel[1])
    windows = r.op("Reshape", [x], shape=[batch, channels, *kernel, *places])
    attrs = {"kernel_shape": kernel, "strides": strides, "pads": pads, "dilations": dilations}
    return r.op("Col2Im", [windows], shape=[batch, channels, *image], **attrs)


WINDOWS = {
    "Col2Im": _col2im,
    "ConvTranspose": _conv_transpose,
    "Conv": _conv,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_pool("ReduceMean"),
    "GlobalMaxPool": _global_pool("ReduceMax"),
    "Resize": _resize,
}
