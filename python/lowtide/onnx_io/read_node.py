"""A node of an ONNX model as the reading functions see it."""

from dataclasses import dataclass

import numpy

from lowtide.errors import UnsupportedError


@dataclass
class ReadNode:
    op: str
    inputs: list  # names; "" for absent ones
    outputs: list
    attrs: dict

    def get(self, name, default=None):
        return self.attrs.get(name, default)

    def has(self, index):
        return index < len(self.inputs) and self.inputs[index] != ""

    def wants(self, index):
        return index < len(self.outputs) and self.outputs[index] != ""


def axis_of(n, rank, default=-1):
    axis = n.get("axis", default)
    return axis + rank if axis < 0 else axis


def axes_of(axes, rank):
    return sorted(axis + rank if axis < 0 else axis for axis in axes)


def constant_array(n):
    for name, value in n.attrs.items():
        if name == "value":
            return value
        if name in ("value_float", "value_floats"):
            return numpy.array(value, dtype=numpy.float32)
        if name in ("value_int", "value_ints"):
            return numpy.array(value, dtype=numpy.int64)
    raise UnsupportedError("it has no value that lowtide reads")


def fill_array(n):
    """The single element of ConstantOfShape's value."""
    value = n.get("value")
    return numpy.float32(0) if value is None else value.reshape(-1)[0]
