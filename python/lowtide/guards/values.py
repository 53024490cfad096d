"""Python values as graphs know them: which are plain, what of a tensor is its metadata, words for each."""

import collections
import enum
import sys

import torch

from lowtide.errors import UnsupportedError

# Values that a graph may hold as constants: compared by type and value on each call.
PLAIN = (type(None), bool, int, float, complex, str, bytes, enum.Enum, torch.dtype, torch.device, torch.Size)
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
MOST_TIMES = 64  # that a loop over numbers is in a graph
DTYPES = {
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "c64",
    torch.complex128: "c128",
}
CONTAINERS = (collections.deque, dict, frozenset, list, set, tuple)
LARGEST = 4096  # elements of a container that are compared one by one


def base_of(container):
    """Python's own class of it, whose methods run no code of users'."""
    return next(kind for kind in CONTAINERS if isinstance(container, kind))


def entries_of(container):
    """[(key or index, item)]."""
    base = base_of(container)
    return list(dict.items(container) if base is dict else enumerate(base.__iter__(container)))


def dtype_name(dtype):
    if dtype not in DTYPES:
        raise UnsupportedError(f"a tensor of dtype {dtype}")
    return DTYPES[dtype]


def is_array(value):
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def is_plain(value):
    """Whether a graph may hold it as a constant: plain values, NumPy's numbers and arrays."""
    numpy = sys.modules.get("numpy")
    return (
        isinstance(value, PLAIN)
        or (numpy is not None and isinstance(value, numpy.generic))
        or (is_array(value) and not value.dtype.hasobject)
    )


def may_vary(value):
    """Whether a graph may serve calls with any such value: a number is an input of it, a string is not read."""
    return type(value) in (float, str) or (type(value) is int and -(2**63) <= value < 2**63)


def same_plain(one, other):
    """0.0 and -0.0 are two values, and a NaN is the same as itself."""
    return type(one) is type(other) and (one == other or one != one) and repr(one) == repr(other)


def array_key(array):
    return array.dtype.str, array.shape, array.tobytes()


def describe(value):
    """For reasons in words: "i64[2, 16]", "None", "'mean'"."""
    if isinstance(value, torch.Tensor):
        text = f"{DTYPES.get(value.dtype, value.dtype)}[{', '.join(str(size) for size in value.shape)}]"
        return text if type(value) in PLAIN_TENSORS else f"{type(value).__name__} {text}"
    if is_array(value):
        return f"an array {value.dtype}{list(value.shape)} with other numbers than any before"
    text = (
        repr(value) if is_plain(value) or type(value) in (list, tuple, dict, set) else f"a {type(value).__qualname__}"
    )
    return text if len(text) <= 60 else f"{text[:57]}..."
