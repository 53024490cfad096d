"""Element types under their names in graphs and in ONNX."""

import ml_dtypes
import numpy
import torch
from onnx import TensorProto

ONNX_TYPES = {
    "bool": TensorProto.BOOL,
    "u8": TensorProto.UINT8,
    "i8": TensorProto.INT8,
    "i16": TensorProto.INT16,
    "i32": TensorProto.INT32,
    "i64": TensorProto.INT64,
    "bf16": TensorProto.BFLOAT16,
    "f16": TensorProto.FLOAT16,
    "f32": TensorProto.FLOAT,
    "f64": TensorProto.DOUBLE,
    "c64": TensorProto.COMPLEX64,
    "c128": TensorProto.COMPLEX128,
}
NAMES = {onnx_type: name for name, onnx_type in ONNX_TYPES.items()}
NUMPY_TYPES = {
    "bool": numpy.bool_,
    "u8": numpy.uint8,
    "i8": numpy.int8,
    "i16": numpy.int16,
    "i32": numpy.int32,
    "i64": numpy.int64,
    "bf16": ml_dtypes.bfloat16,
    "f16": numpy.float16,
    "f32": numpy.float32,
    "f64": numpy.float64,
    "c64": numpy.complex64,
    "c128": numpy.complex128,
}
NAMES_OF_NUMPY = {numpy.dtype(numpy_type): name for name, numpy_type in NUMPY_TYPES.items()}
FLOATS = ("bf16", "f16", "f32", "f64")
CONTEXT = "ctx"  # an opaque handle, which ONNX has no type for


def array_from_torch(tensor):
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:  # which PyTorch does not hand to NumPy
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def shortest(number):
    """The decimal that someone wrote, of a number that ONNX has kept as a 32-bit float: 1e-05, not 9.99999974e-06."""
    return float(str(numpy.float32(number)))


def survives(number):
    """Whether a float attribute of ONNX keeps this number."""
    return shortest(number) == number or number != number
