"""The types of a custom function's results where its forward cannot run on fake tensors: NumPy, a user's own kernel."""

import contextlib

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from lowtide.errors import UnsupportedError


def trace_for_real(run, tensors, sizes, error):
    """Fake results of run(tensors, sizes), which raised `error` on fake tensors.

    Runs it on real ones of the example's sizes, then with each free size one larger: how the results' dims follow tells
    what they are, if they follow linearly, which a last run checks. A size that may not change alone is made constant.
    Values are random numbers, or zeros of integers.
    """
    plain = {}  # symbol → a size that is just it
    for size in [*(size for tensor in tensors for size in tensor.shape), *sizes]:
        if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
            plain[size.node.expr] = size
    hints = {symbol: size.node.hint for symbol, size in plain.items()}
    try:
        slopes = {}
        for symbol in plain:
            with contextlib.suppress(ValueError, RuntimeError, IndexError, AssertionError):
                slopes[symbol] = _types(run, tensors, sizes, {**hints, symbol: hints[symbol] + 1})
            if symbol not in slopes:
                int(plain[symbol])  # a guard
        larger = _types(run, tensors, sizes, {**hints, **{symbol: hints[symbol] + 2 for symbol in slopes}})
        base = _types(run, tensors, sizes, hints)  # the last one: `run` notes results that are no tensors
    except UnsupportedError:
        raise
    except Exception:
        raise error from None
    found = []
    for place, (shape, dtype) in enumerate(base):
        if any(len(types) != len(base) or types[place][1] != dtype for types in (*slopes.values(), larger)):
            raise error
        found.append(
            torch.empty(
                [_dim(place, axis, base, slopes, larger, plain, error) for axis in range(len(shape))], dtype=dtype
            )
        )
    return found


def _dim(place, axis, base, slopes, larger, plain, error):
    size = at_larger = base[place][0][axis]
    for symbol, types in slopes.items():
        if len(types[place][0]) != len(base[place][0]):
            raise error
        slope = types[place][0][axis] - base[place][0][axis]
        at_larger += 2 * slope
        if slope:
            size = size + slope * (plain[symbol] - plain[symbol].node.hint)
    if len(larger[place][0]) != len(base[place][0]) or larger[place][0][axis] != at_larger:
        raise error
    return size


def _types(run, tensors, sizes, values):
    with unset_fake_temporarily(), torch.random.fork_rng(devices=()):
        real = [_real(tensor, values) for tensor in tensors]
        return [(tuple(result.shape), result.dtype) for result in run(real, [_number(size, values) for size in sizes])]


def _real(tensor, values):
    shape = [_number(size, values) for size in tensor.shape]
    if tensor.dtype.is_floating_point:
        return torch.rand(shape, dtype=tensor.dtype)
    return torch.zeros(shape, dtype=tensor.dtype)


def _number(size, values):
    return int(size.node.expr.subs(values)) if isinstance(size, torch.SymInt) else size
