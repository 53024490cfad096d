"""Arguments and outputs as a list of tensors and a schema of the rest, under ORTModule's names. The trees are those of
lowtide.capture: what a wrapped module takes, these functions take."""

from collections.abc import Mapping, Sequence
from typing import Union

import torch

from lowtide.capture import trees
from lowtide.errors import InvalidArgument, UnsupportedData
from lowtide.guards.values import is_plain


class PrimitiveType:
    """The numbers that may be tensors to a graph."""

    _DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float32}

    @staticmethod
    def is_primitive_type(value):
        return type(value) in PrimitiveType._DTYPES

    @staticmethod
    def get_primitive_dtype(value):
        """A text that is equal for values which may share a graph; a bool's holds its value."""
        return f"{type(value)}_{value}" if isinstance(value, bool) else str(type(value))


class TensorStub:
    """The place of a tensor in a schema: its index in the list of tensors, its dtype in words, and its rank."""

    __slots__ = ("dtype", "shape_dims", "tensor_idx")

    def __init__(self, tensor_idx, dtype, shape_dims):
        self.tensor_idx, self.dtype, self.shape_dims = tensor_idx, dtype, shape_dims

    def __eq__(self, other):
        return isinstance(other, TensorStub) and self._key() == other._key()

    def __hash__(self):
        return hash(self._key())

    def _key(self):
        return self.tensor_idx, self.dtype, self.shape_dims

    def __repr__(self):
        return f"TensorStub({self.tensor_idx}, {self.dtype}, {self.shape_dims} dims)"


ORTModelInputOutputType = Union[  # noqa: UP007  (a name of itself inside, as text)
    None,
    str,
    int,
    bool,
    float,
    torch.Tensor,
    Sequence["ORTModelInputOutputType"],
    Mapping[str, "ORTModelInputOutputType"],
]
ORTModelInputOutputSchemaType = Union[  # noqa: UP007
    None,
    str,
    int,
    bool,
    float,
    TensorStub,
    Sequence["ORTModelInputOutputSchemaType"],
    Mapping[str, "ORTModelInputOutputSchemaType"],
]


def extract_data_and_schema(data, constant_as_tensor=False, device=None):
    """(list of the tensors in `data`, depth first, the same tree with a TensorStub for each). `constant_as_tensor`:
    bools, ints and floats become 0-d tensors too, on `device`. UnsupportedData for what no graph takes."""
    leaves, structure = trees.flatten(data)
    tensors, schema = [], []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            schema.append(TensorStub(len(tensors), str(leaf.dtype), leaf.dim()))
            tensors.append(leaf)
        elif constant_as_tensor and PrimitiveType.is_primitive_type(leaf):
            schema.append(TensorStub(len(tensors), PrimitiveType.get_primitive_dtype(leaf), 0))
            tensors.append(torch.tensor(leaf, dtype=PrimitiveType._DTYPES[type(leaf)], device=device))
        elif is_plain(leaf):
            schema.append(leaf)
        else:
            raise UnsupportedData(f"Unsupported flatten data type: found {trees.how_to_register(type(leaf))}")
    return tensors, trees.unflatten(schema, structure)


def unflatten_data_using_schema(data, schema):
    """The tree that `schema` was made from, with the tensors of `data` in the places of its stubs."""
    data = list(data)
    leaves, structure = trees.flatten(schema, is_leaf=lambda part: isinstance(part, TensorStub))
    stubs = [leaf for leaf in leaves if isinstance(leaf, TensorStub)]
    if len(data) != len(stubs):
        raise InvalidArgument(f"expected {len(stubs)} tensors, as many as the schema has, found {len(data)}")
    return trees.unflatten(
        [data[leaf.tensor_idx] if isinstance(leaf, TensorStub) else leaf for leaf in leaves], structure
    )
