"""What is known of a module's calls when it is exported."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Facts:
    """What calls have taught since the first export. A dim is (index of the tensor, index of the dim)."""

    untied: frozenset = frozenset()  # pairs of dims that were equal in an example by accident
    moving: frozenset = frozenset()  # dims of images and the like that do change
    fixed: frozenset = frozenset()  # dims that the graph needs as constants
    exact: bool = False  # export the example's own sizes
    large: bool = False  # forward asks whether sums of sizes, some from data, are 0 or 1: free sizes are no less than 2
    free: bool = False  # not taught but asked for: heights, widths and the like are free from the first export on
    usual: bool = True  # numbers are finite, and counts from data neither 0 nor 1, where forward asks
    known_buffers: bool = False  # what modules keep in buffers of one whole number are constants
    lists: bool = False  # as are tensors that forward makes of numbers: arange(3).tolist()
    keep: tuple | None = None  # asked for: paths of the outputs that are kept (kept_outputs.py); None: all
    plain: frozenset = frozenset()  # (name of a Python module, "int" or "float" that its code calls of tensors)
    needs_plain: frozenset = frozenset()  # the same of sizes, which must be plain numbers
    assigning: frozenset = frozenset()  # names of Python modules in which SciPy's assignment is an op
    as_eager: bool = False  # forward hears that nothing is compiled
    bounded: bool = False  # free sizes are no more than 2**40, of which PyTorch's own bounds of quotients are exact
    read: frozenset = frozenset()  # indices of arguments that forward reads elsewhere, too (own_arguments.py)
    sets: tuple = ()  # Writes that the export has, whatever forward sets there: to be compared with another

    def renumbered(self, places):
        """For a call whose tensors lie elsewhere: `places` by their index here."""

        def dims(found):
            return frozenset((places[index], dim) for index, dim in found)

        untied = frozenset(dims(pair) for pair in self.untied)
        read = frozenset(places[index] for index in self.read)
        return replace(self, untied=untied, moving=dims(self.moving), fixed=dims(self.fixed), read=read)
