"""Calls of ATen that keep no statistics, and whose gradients have gradients themselves, in the place of what autograd
makes: where gradients are written out in forward."""

import functools
import operator

import torch

from lowtide.errors import UnsupportedError

aten = torch.ops.aten


@functools.cache
def plain_calls():
    """{op: decomposition}."""
    table = torch.export.default_decompositions()
    found = {op: rule for op, rule in table.items() if "_backward" in str(op)}
    return found | {
        aten.convolution_backward.default: _convolution_backward,
        aten.log_sigmoid_forward.default: _log_sigmoid,
        aten.native_layer_norm.default: _layer_norm,
        aten.native_group_norm.default: _group_norm,
        aten._native_batch_norm_legit.no_stats: _batch_norm,
    }


def _convolution_backward(
    gradient, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
):
    """Of the input alone it is a convolution too."""
    sizes = [*input.shape[2:], *gradient.shape[2:], *weight.shape[2:]]
    if list(output_mask) != [True, False, False] or not all(isinstance(size, int) for size in sizes):
        return NotImplemented
    padded = [0] * len(stride)
    if not transposed:
        sizes = zip(input.shape[2:], gradient.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
        padded = [
            size - ((places - 1) * step - 2 * margin + spread * (width - 1) + 1)
            for size, places, width, step, margin, spread in sizes
        ]
    settings = (None, stride, padding, dilation, not transposed, padded, groups)
    return aten.convolution.default(gradient, weight, *settings), None, None


def _log_sigmoid(input):
    small = torch.exp(-input.abs())
    return torch.minimum(input, torch.zeros_like(input)) - torch.log1p(small), small


def _layer_norm(input, normalized_shape, weight, bias, eps):
    dims = list(range(-len(normalized_shape), 0))
    centred, mean, scale = _centred(input, dims, eps)
    return _scaled(centred * scale, weight, bias), mean, scale


def _group_norm(input, weight, bias, samples, channels, elements, groups, eps):
    """input: (samples, channels, …)."""
    centred, mean, scale = _centred(input.reshape(samples, groups, -1), [2], eps)
    shape = [1, -1] + [1] * (input.dim() - 2)
    weight, bias = (None if each is None else each.view(shape) for each in (weight, bias))
    return _scaled((centred * scale).view(input.shape), weight, bias), mean.squeeze(2), scale.squeeze(2)


def _batch_norm(input, weight, bias, training, momentum, eps):
    dims = [dim for dim in range(input.dim()) if dim != 1]
    centred, mean, scale = _centred(input, dims, eps)
    shape = [1, -1] + [1] * (input.dim() - 2)
    weight, bias = (None if each is None else each.view(shape) for each in (weight, bias))
    return _scaled(centred * scale, weight, bias), mean.flatten(), scale.flatten()


def _centred(input, dims, eps):
    """(input less its mean, the mean, one by the deviation)."""
    mean = input.mean(dims, keepdim=True)
    centred = input - mean
    return centred, mean, (centred.square().mean(dims, keepdim=True) + eps).rsqrt()


def _scaled(input, weight, bias):
    input = input if weight is None else input * weight
    return input if bias is None else input + bias


def refuse_statistics(graph):
    """Some results are kept for one backward alone, whose own gradient knows what they are of; nobody else does."""
    for node in graph.nodes:
        source = node.args[0] if node.target is operator.getitem and node.args[1] > 0 else None
        name = getattr(getattr(source, "target", None), "_opname", _PLAIN[0])
        if not name.startswith(_PLAIN) and node.users and node.meta["val"].is_floating_point():
            raise UnsupportedError(f"gradients of the backward of {source.target} in forward")


# All of their results have gradients.
_PLAIN = (
    "split",
    "unbind",
    "unsafe_split",
    "var_mean",
    "std_mean",
    "linalg_qr",
    "_linalg_eigh",
    "convolution_",
    "nll_",
)
