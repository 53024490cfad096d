"""Whose memory the values of a graph that is being imported lie in, and what calls may write there."""

from lowtide.errors import UnsupportedError

from .op_schemas import labels_of


class Aliases:
    def __init__(self):
        self.params = set()  # value numbers of parameters
        self.without_gradient = set()  # value numbers of inputs that take none
        self.inputs = set()  # value numbers of all inputs
        self.inside = None  # in a no_grad region: value numbers made there
        self._roots = {}  # value number → value number whose memory it lies in (absent: its own)

    def root(self, value):
        return self._roots.get(value, value)

    def note_view(self, value, of):
        self._roots[value] = self.root(of)

    def note_made(self, values):
        """Values that a call returns, not their inputs."""
        if self.inside is not None:
            self.inside.update(values)

    def note_call(self, values, overload, operands, names):
        """`values`: what a call of `overload` returns."""
        self.note_made(values)
        shared = {label for output in overload._schema.returns if output.alias_info for label in labels_of(output)}
        for argument in overload._schema.arguments:
            if argument.alias_info is not None and shared & labels_of(argument) and argument.name in names:
                root = self.root(operands[names.index(argument.name)])
                self._roots.update((value, root) for value in values)

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
        root = self.root(value)
        if root in self.params:
            raise UnsupportedError("forward writes into a parameter")
        if root in self.inputs and root not in self.without_gradient:
            raise UnsupportedError("forward writes into an argument or buffer that takes a gradient")
        # PyTorch would go on with the gradient of the tensor as it was before the write.
        if self.inside is not None and root not in self.inside and root not in self.without_gradient:
            raise UnsupportedError("forward writes under torch.no_grad() into a tensor that may have a gradient")
