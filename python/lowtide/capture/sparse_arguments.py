"""Sparse tensors among a call's arguments: to a graph they are the dense tensors that they are made of."""

import enum
from dataclasses import dataclass

import torch


class Kind(enum.Enum):
    COO = enum.auto()
    COALESCED = enum.auto()
    CSR = enum.auto()
    CSC = enum.auto()


_COMPRESSED = {
    torch.sparse_csr: (Kind.CSR, torch.Tensor.crow_indices, torch.Tensor.col_indices),
    torch.sparse_csc: (Kind.CSC, torch.Tensor.ccol_indices, torch.Tensor.row_indices),
}
_MAKERS = {Kind.CSR: torch.sparse_csr_tensor, Kind.CSC: torch.sparse_csc_tensor}


@dataclass
class SparseArgument:
    indices: torch.Tensor  # (dims, elements) of COO; of the others where rows or columns begin
    others: torch.Tensor | None  # of the others: of each element the column or row
    values: torch.Tensor
    like: torch.Tensor  # of its shape, one number: sizes of tensors may change from call to call
    kind: Kind

    def call(self):
        """(PyTorch's function that makes it, args, kwargs)."""
        if self.kind in _MAKERS:
            return _MAKERS[self.kind], (self.indices, self.others, self.values, self.like.shape), {}
        is_coalesced = True if self.kind is Kind.COALESCED else None
        return torch.sparse_coo_tensor, (self.indices, self.values, self.like.shape), {"is_coalesced": is_coalesced}


def taken_apart(args, kwargs):
    """(args, kwargs) with the sparse ones among them, and in lists and tuples of them, taken apart, but those with a
    gradient."""
    if not any(map(_holds_sparse, args)) and not any(map(_holds_sparse, kwargs.values())):
        return args, kwargs
    return tuple(_mapped(_apart, value) for value in args), {
        name: _mapped(_apart, value) for name, value in kwargs.items()
    }


def put_together(args, kwargs, make):
    """The reverse, by `make` of each."""

    def together(value):
        return make(value) if isinstance(value, SparseArgument) else value

    return tuple(_mapped(together, value) for value in args), {
        name: _mapped(together, value) for name, value in kwargs.items()
    }


def _mapped(function, value):
    """A list or a tuple in which nothing is another one stays itself: forward may change it."""
    if type(value) not in (list, tuple):
        return function(value)
    mapped = type(value)(map(function, value))
    return mapped if any(new is not old for new, old in zip(mapped, value, strict=True)) else value


def _holds_sparse(value):
    return any(map(_is_sparse, value)) if type(value) in (list, tuple) else _is_sparse(value)


def _is_sparse(value):
    return isinstance(value, torch.Tensor) and value.layout is not torch.strided


def _apart(value):
    if not _is_sparse(value) or value.requires_grad or type(value) is not torch.Tensor:
        return value
    like = torch.zeros((), dtype=torch.bool).expand(value.shape)
    if value.layout in _COMPRESSED:
        kind, begins, others = _COMPRESSED[value.layout]
        return SparseArgument(begins(value), others(value), value.values(), like, kind)
    if value.layout is not torch.sparse_coo:
        return value
    kind = Kind.COALESCED if value.is_coalesced() else Kind.COO
    return SparseArgument(value._indices(), None, value._values(), like, kind)
