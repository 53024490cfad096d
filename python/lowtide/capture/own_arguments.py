"""Arguments that are tensors of the module's own, or that forward also reads elsewhere: `model(model.scale)`.

Forward sees one object there, whose gradient is one, and may ask `x is self.scale`. So the trace has what stands for
the module's tensor in the argument's place too, and the graph is right for calls alone that give the same tensor
(Guards.take).
"""

from lowtide.errors import UnsupportedError
from lowtide.guards.questions import named_tensors


class OwnArguments:
    """Of a call."""

    def __init__(self, module, call, read):
        """Before the trace. `read`: indices of arguments that are known to be what forward reads elsewhere, as an
        attribute or a global, and no parameters or buffers."""
        paths = {id(tensor): path for path, tensor in reversed(named_tensors(module).items())}
        numbers = call.number_indices()
        self._paths = {
            index: paths[id(tensor)]
            for index, tensor in enumerate(call.tensors)
            if id(tensor) in paths and index not in numbers
        }
        self._read = {index: call.tensors[index] for index in read if index not in self._paths}

    def stand_in(self, tensors, module):
        """What stands for a call's tensors, with one stand-in for each of the module's: `module` holds those."""
        own = named_tensors(module) if self._paths else {}
        return [
            own[self._paths[index]] if index in self._paths else self._read.get(index, tensor)
            for index, tensor in enumerate(tensors)
        ]

    def check(self, guards, names):
        """Indices of further arguments that forward reads elsewhere, which another trace must know (`read`).
        UnsupportedError where calls cannot be told by them. `names`: of the tensors."""
        known = self._paths.keys() | self._read.keys()
        if untold := sorted(known - guards.own_arguments.keys()):
            index = untold[0]
            whose = f"the module's '{self._paths[index]}'" if index in self._paths else "a tensor of the module's"
            raise UnsupportedError(f"argument `{names[index]}` is {whose}, which forward replaces")
        if known:
            guards.refuse_storing("an argument is a tensor of the module's own")
        return frozenset(guards.own_arguments.keys() - known)
