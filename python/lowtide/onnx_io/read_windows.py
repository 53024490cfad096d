"""ONNX's convolutions, poolings and resizing as lowtide's ops."""

from lowtide.errors import UnsupportedError


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
    return r.op("Conv", operands, dilations=dilations, group=n.get("group", 1), **attrs)


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


WINDOWS = {
    "Conv": _conv,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_pool("ReduceMean"),
    "GlobalMaxPool": _global_pool("ReduceMax"),
    "Resize": _resize,
}
