"""Whose memory the values of a graph that is being imported lie in, and what calls may write there."""

import torch

from lowtide.errors import UnsupportedError
from lowtide.guards.values import DTYPES

from .op_schemas import labels_of

_DETACHES = (torch.ops.aten.detach.default, torch.ops.aten.detach_.default)
# Whose backward reads no element of what they return: .data may write it unseen.
_KEEPS_NO_RESULT = frozenset(
    "add addmm baddbmm bmm cat clone conv1d conv2d conv3d div dropout einsum embedding gelu index_select layer_norm"
    " linear masked_fill matmul mean mm mul neg rsub silu stack sub sum where".split()
)
_CHANGE_SHAPES = frozenset("squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_".split())
_WITH_GRADIENT = {name for dtype, name in DTYPES.items() if dtype.is_floating_point or dtype.is_complex}


class Aliases:
    def __init__(self, graph):
        self._graph = graph
        self.params = set()  # value numbers of parameters
        self.without_gradient = set()  # value numbers of inputs that take none
        self.inputs = set()  # value numbers of all inputs
        self.divided = set()  # value numbers of parameters that are gathered
        self.inside = None  # in a no_grad region: value numbers made there
        self._roots = {}  # value number → value number whose memory it lies in (absent: its own)
        self._plain = set()  # value numbers of what is made of values without a gradient alone
        self._mixed = set()  # value numbers of those into which a value that may have one was written
        self._detached = set()  # value numbers that lie in memory of others, but have no gradient
        self._data = set()  # of these, those whose writes autograd does not count: .data, detach()
        self._outside = {}  # value number of what a no_grad region writes into → the one outside, which has a gradient
        self._kept_by_none = set()  # value numbers that no backward reads for having made them
        self._read = set()  # roots that a call has read whose result may have a gradient

    def root(self, value):
        return self._roots.get(value, value)

    def note_view(self, value, of):
        self._roots[value] = self.root(of)

    def note_detached(self, value, of):
        self.note_view(value, of)
        self._detached.add(value)

    def is_open(self, value):
        """Whether it has a gradient that a write under no_grad leaves as it was: it is no input."""
        return self.root(value) not in self.inputs and not self._is_plain(value)

    def note_outside(self, inside, value):
        self._outside[inside] = value

    def outside(self, nodes, values):
        """What the values of a region's nodes, which it returns, are outside of it."""
        pairs = zip(nodes, values, strict=True)
        return [self._outside.get(value, value) if _is_tensor(node) else value for node, value in pairs]

    def note_made(self, values):
        """Values that a call returns, not their inputs."""
        if self.inside is not None:
            self.inside.update(values)

    def note_call(self, values, overload, operands, names, is_view=None):
        """`values`: what a call of `overload` returns. `is_view`: False where it has memory of its own, though the
        schema tells of an alias."""
        self.note_made(values)
        operands = list(operands)
        is_plain = self.inside is not None or all(map(self._is_plain, operands))
        shared = {label for output in overload._schema.returns if output.alias_info for label in labels_of(output)}
        for argument in overload._schema.arguments:
            if argument.alias_info is None or argument.name not in names:
                continue
            operand = operands[names.index(argument.name)]
            if is_view is not False and shared & labels_of(argument):
                self._roots.update((value, self.root(operand)) for value in values)
                if overload in _DETACHES or operand in self._detached:
                    self._detached.update(values)
                if overload in _DETACHES or operand in self._data:
                    self._data.update(values)
                if argument.is_write and operand in self._outside:
                    self._outside.update(dict.fromkeys(values, self._outside[operand]))
            if argument.alias_info.is_write and not is_plain and self._takes_gradient(operand):
                self._mixed.add(self.root(operand))
        own = [value for value in values if self.root(value) == value]
        self._plain.update(value for value in own if is_plain or not self._takes_gradient(value))
        if overload.namespace == "aten" and overload._opname in _KEEPS_NO_RESULT:
            self._kept_by_none.update(own)
        is_view = bool(values) and not own and not overload._schema.is_mutable
        if not is_plain and overload not in _DETACHES and (not values or any(map(self._takes_gradient, values))):
            read = {self.root(operand) for operand in operands if operand is not None}
            self._read.update(read & self.inputs if is_view else read)

    def require_alone(self, value):
        """Of one that gets another size, and with it other memory."""
        if value in self.inputs or self.root(value) != value or value in self._roots.values():
            raise UnsupportedError("forward changes the size of a tensor by out=")

    def _takes_gradient(self, value):
        """Masks and indices have none, whatever they were made of."""
        return self._graph.type_of(value)[0] in _WITH_GRADIENT

    def _is_plain(self, value):
        if value is None or value in self._detached:
            return True
        root = self.root(value)
        return root not in self._mixed and (root in self.without_gradient or root in self._plain)

    def has_history(self, value):
        """Whether a value that may have a gradient was written into its memory."""
        return self.root(value) in self._mixed

    def check_writes(self, overload, operands, names):
        """Refuses writes whose gradients no functional graph expresses."""
        for argument in overload._schema.arguments:
            if argument.alias_info is None or not argument.alias_info.is_write or argument.name not in names:
                continue
            is_list = overload.namespace == "aten" and "List" in str(argument.real_type)
            if argument.is_out or is_list:  # a result is the argument itself, or a list of them
                raise UnsupportedError(f"an op writes its argument {argument.name}")
            for operand, name in zip(operands, names, strict=True):
                if name == argument.name and operand is not None:
                    if operand in self._outside and overload._opname in _CHANGE_SHAPES:
                        raise UnsupportedError("forward changes the shape of a tensor with a gradient under no_grad")
                    self.check_write(operand)

    def check_write(self, value):
        """PyTorch goes on with the gradient of a tensor as it was before a write that autograd does not see. Where
        backward reads the tensor as it was before, it refuses to after one under no_grad; past one through .data, it
        computes with what the tensor has become."""
        root = self.root(value)
        is_unseen = self.inside is not None or value in self._detached
        if root in self.divided:
            raise UnsupportedError("forward writes into a parameter that is divided among processes")
        has_none = root in self.without_gradient or root in self._plain
        if self.inside is not None and root in self.inside or has_none and not (is_unseen and root in self._mixed):
            return
        if root in self.inputs and not is_unseen:
            raise UnsupportedError("forward writes into an argument or buffer that takes a gradient")
        if root in self.inputs and root in self._read:
            raise UnsupportedError("forward writes under torch.no_grad() or through .data into what it has read before")
        if root in self.inputs and is_unseen and root in self._mixed:
            raise UnsupportedError(
                "forward writes under torch.no_grad() or through .data into a tensor that may have a gradient"
            )
        if value in self._data and root not in self.inputs and (root in self._read or root not in self._kept_by_none):
            raise UnsupportedError("forward writes through .data into a tensor that backward may read")


def _is_tensor(node):
    return isinstance(node, torch.fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)
