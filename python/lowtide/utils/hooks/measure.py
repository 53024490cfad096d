"""Statistics of one tensor, by the engine's own loop."""

import math

import torch

from lowtide import _lowtide
from lowtide.errors import UnsupportedError
from lowtide.guards.values import DTYPES

from .summary_file import Summary

_NAMES = {name: str(dtype).removeprefix("torch.") for dtype, name in DTYPES.items()}


def refusal_of(tensor):
    """Why there are no statistics of a tensor, None where there are."""
    if tensor.dtype in DTYPES and not tensor.is_complex() and tensor.layout is torch.strided:
        return None
    return f"no statistics of a tensor of dtype {tensor.dtype} and layout {tensor.layout}"


def measure(tensor, run_on_cpu=False, bucket_size=1 << 29):
    """The Summary of a dense tensor. One on the CPU is read in place; of others, `bucket_size` elements are copied at a
    time, or, with `run_on_cpu`, all. UnsupportedError for a dtype of which there are none."""
    tensor = tensor.detach()
    if reason := refusal_of(tensor):
        raise UnsupportedError(reason)
    shape = tuple(tensor.shape)
    if len(shape) > 8:  # what the engine takes
        tensor = tensor.flatten(start_dim=7)
    if tensor.device.type == "cpu" or run_on_cpu:
        parts = [_lowtide.statistics(tensor.cpu())]
    else:
        flat = tensor.reshape(-1)
        parts = [_lowtide.statistics(bucket.cpu()) for bucket in flat.split(bucket_size)]
    summary = summary_from(parts[0])
    for part in parts[1:]:
        _join(summary, summary_from(part))
    summary.shape = shape
    return summary


def summary_from(statistics):
    """The Summary of what lowtide._lowtide.statistics and Session.take_inspected give."""
    dtype, shape, (low, high, mean, std), counts, samples = statistics
    number = float if _NAMES[dtype].startswith(("float", "bfloat")) else int
    size = math.prod(shape)
    if number is int and size:
        low, high = int(low), int(high)
    return Summary(
        shape, _NAMES[dtype], size, low, high, mean, std, *counts, samples=[number(item) for item in samples]
    )


def _join(summary, part):
    """Makes `summary` that of both: Chan, Golub and LeVeque's way, exact where sums of squares would cancel."""
    a, b = summary.size, part.size
    squares = sum(each.std**2 * (each.size - 1) for each in (summary, part) if each.size > 1)
    distance = part.mean - summary.mean
    squares += distance * distance * a * b / (a + b)
    summary.min = _first(summary.min, part.min, summary.min < part.min)
    summary.max = _first(summary.max, part.max, summary.max > part.max)
    summary.mean = summary.mean + (distance * b / (a + b) if math.isfinite(distance) else part.mean)
    summary.size = a + b
    summary.std = math.sqrt(squares / (a + b - 1)) if a + b > 1 else math.nan
    for count in ("nan", "inf", "negative", "positive", "zero"):
        setattr(summary, count, getattr(summary, count) + getattr(part, count))


def _first(first, second, is_first):
    """A NaN stays."""
    return first if is_first or math.isnan(first) else second
