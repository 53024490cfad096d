"""Whose memory the values of a graph that is being imported lie in, and what calls may write there."""

import torch

from lowtide.errors import UnsupportedError
from lowtide.guards.values import DTYPES

from .op_schemas import labels_of

_DETACHES = (torch.ops.aten.detach.default, torch.ops.aten.detach_.default)
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
        self._read = set()  # roots that a call has read whose result may have a gradient

    def root(self, value):
        return self._roots.get(value, value)

    def note_view(self, value, of):
        self._roots[value] = self.root(of)

    def note_detached(self, value, of):
        self.note_view(value, of)
        self._detached.add(value)

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
            if argument.alias_info.is_write and not is_plain and self._takes_gradient(operand):
                self._mixed.add(self.root(operand))
        own = [value for value in values if self.root(value) == value]
        self._plain.update(value for value in own if is_plain or not self._takes_gradient(value))
        if not is_plain and overload not in _DETACHES and (not values or any(map(self._takes_gradient, values))):
            self._read.update(self.root(operand) for operand in operands if operand is not None)

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
            is_first = argument.name == overload._schema.arguments[0].name and "List" not in str(argument.real_type)
            if overload.namespace == "aten" and not is_first:  # functionalise knows only `self` of ATen's in-place ops
                raise UnsupportedError(f"an op writes its argument {argument.name}")
            for operand, name in zip(operands, names, strict=True):
                if name == argument.name and operand is not None:
                    self.check_write(operand)

    def check_write(self, value):
        """PyTorch goes on with the gradient of a tensor as it was before a write that autograd does not see, and
        computes it with what it has become where it has been read before."""
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
        if is_unseen and root not in self.inputs - self._mixed:
            raise UnsupportedError(
                "forward writes under torch.no_grad() or through .data into a tensor that may have a gradient"
            )
