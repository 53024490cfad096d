"""Gradients of parameters that have become others since (`weight.data = larger`, as transformers resizes embeddings).
PyTorch leaves them until the next zero_grad(), and the exporter, which copies parameters with gradients, refuses."""

import contextlib


@contextlib.contextmanager
def stale_gradients_aside(module):
    stale = [(parameter, parameter.grad) for parameter in module.parameters() if _is_stale(parameter, parameter.grad)]
    for parameter, _ in stale:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in stale:
            _put_back(parameter, gradient)


def _is_stale(parameter, gradient):
    return gradient is not None and (gradient.shape, gradient.dtype) != (parameter.shape, parameter.dtype)


def _put_back(parameter, gradient):
    """PyTorch asks whether the two fit when a gradient is set, and not when data is."""
    now = parameter.data
    parameter.data = gradient.detach()
    parameter.grad = gradient
    parameter.data = now
