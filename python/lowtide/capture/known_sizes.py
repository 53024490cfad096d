"""Sizes that a captured graph knows: dims by name, and the guards under which it is right."""

from dataclasses import dataclass

import torch

from lowtide._lowtide import SizeFormula


@dataclass
class Guard:
    text: str  # of a SizeFormula over the names of dims
    tie: tuple = ()  # (dim, dim): our guess from an example, not a demand of the model
    fixed: tuple = ()  # dim: constant in the graph


@dataclass
class SizeText:
    """A size, or a condition on sizes, among a module's outputs: of a SizeFormula over the names of dims."""

    text: str
    is_condition: bool = False

    @classmethod
    def of(cls, leaf, sizes):
        """Of a leaf among what an export returns, which may be one of these already; None of any other."""
        if isinstance(leaf, torch.SymInt | torch.SymBool):
            return cls(sizes.text(leaf), isinstance(leaf, torch.SymBool))
        return leaf if isinstance(leaf, cls) else None

    def value(self, sizes, actual):
        """As forward returns it, at the call's `actual` sizes."""
        return sizes.holds(self.text, actual) if self.is_condition else int(sizes.evaluate(self.text, actual))


class KnownSizes:
    """Dims by name, and the guards under which a captured graph is right."""

    def __init__(self, dims, guards, ranges, dynamic_axes):
        """`dims`: name → (index of the tensor, index of the dim); the rest as Sizes gives it."""
        self.dims, self.guards = dims, guards
        self._ranges, self._dynamic_axes = ranges, dynamic_axes
        self._formulas = {}  # text → SizeFormula

    def ranges(self):
        return self._ranges

    def dynamic_axes(self):
        return self._dynamic_axes

    def evaluate(self, text, sizes):
        return self.formula(text).value(self._values(sizes))

    def holds(self, text, sizes):
        return self.formula(text).holds(self._values(sizes))

    def accepts(self, sizes):
        values = self._values(sizes)
        return all(self.formula(guard.text).holds(values) for guard in self.guards)

    def broken(self, sizes):
        values = self._values(sizes)
        return [guard for guard in self.guards if not self.formula(guard.text).holds(values)]

    def formula(self, text):
        """GraphError for a text that is none over the names of dims."""
        found = self._formulas.get(text)
        if found is None:
            found = self._formulas[text] = SizeFormula(text, list(self.dims))
        return found

    def _values(self, sizes):
        return [sizes[index][position] for index, position in self.dims.values()]
