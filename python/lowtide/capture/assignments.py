"""scipy.optimize.linear_sum_assignment in forward: the matching of what a detector found with what there is.

SciPy wants an array, which a trace has none of. In the Python modules whose code asks so, it is an op of the graph
meanwhile, which calls SciPy in each step. Its indices are tensors where eager has arrays, which forward converts, or
joins first.
"""

import contextlib
import sys
import weakref

import torch

from lowtide.errors import UnsupportedError
from lowtide.guards.code import is_ours
from lowtide.guards.replaced import replaced_attribute

_NAME, _OWNER = "linear_sum_assignment", "scipy.optimize"

_library = torch.library.Library("lowtide", "FRAGMENT")
_library.define("linear_sum_assignment(Tensor cost, bool maximize) -> (Tensor, Tensor)")


@torch.library.impl(_library, _NAME, "CPU")
def _assign(cost, maximize):
    found = getattr(sys.modules[_OWNER], _NAME)(cost.detach().numpy(), maximize)
    return tuple(torch.from_numpy(indices).to(torch.int64) for indices in found)


@torch.library.register_fake("lowtide::linear_sum_assignment", lib=_library)
def _trace_assign(cost, maximize):
    rows, columns = cost.shape
    count = rows if rows <= columns else columns
    return cost.new_empty((count,), dtype=torch.int64), cost.new_empty((count,), dtype=torch.int64)


def asks_for_assignments(error, frames):
    """Names of Python modules in which SciPy's function stands, where the trace ended in it; `frames`: innermost
    first."""
    function = getattr(sys.modules.get(_OWNER), _NAME, None)
    if function is None or ".numpy()" not in str(error):
        return frozenset()
    for frame in frames:
        name = frame.f_globals.get("__name__")
        if not is_ours(name):
            if _NAME not in frame.f_code.co_names:
                return frozenset()
            is_there = name in sys.modules and vars(sys.modules[name]).get(_NAME) is function
            return frozenset({_OWNER, name} if is_there else {_OWNER})
    return frozenset()


class Assignments:
    """Of one trace."""

    def __init__(self, modules, is_running):
        """`modules`: names of Python modules in which the function is an op."""
        self._modules, self._is_running = modules, is_running
        self._made = []  # weak references

    @contextlib.contextmanager
    def as_ops(self):
        with contextlib.ExitStack() as stack:
            for name in self._modules:
                function = getattr(sys.modules[name], _NAME)
                stack.enter_context(replaced_attribute(sys.modules[name], _NAME, self._assigning(function)))
            if self._modules:
                numpy = sys.modules["numpy"]
                stack.enter_context(replaced_attribute(numpy, "concatenate", self._joining(numpy.concatenate)))
            yield

    def _assigning(self, function):
        def linear_sum_assignment(cost_matrix, maximize=False):
            is_traced = isinstance(cost_matrix, torch.Tensor) and self._is_running()
            if not is_traced or cost_matrix.dim() != 2 or cost_matrix.requires_grad:
                return function(cost_matrix, maximize)
            found = torch.ops.lowtide.linear_sum_assignment(cost_matrix, bool(maximize))
            self._made.extend(map(weakref.ref, found))
            return found

        return linear_sum_assignment

    def _joining(self, function):
        def concatenate(arrays, axis=0, **others):
            are_listed = isinstance(arrays, list | tuple) and arrays and not others
            if not are_listed or not self._is_running() or not all(map(_are_indices, arrays)):
                return function(arrays, axis, **others)
            joined = torch.cat(tuple(arrays), axis)
            self._made.append(weakref.ref(joined))
            return joined

        return concatenate

    def refuse_outputs(self, leaves):
        """They would be tensors, and are arrays in eager."""
        if any(leaf is made() for made in self._made for leaf in leaves if isinstance(leaf, torch.Tensor)):
            raise UnsupportedError(f"forward returns indices of {_NAME}")


def _are_indices(array):
    return isinstance(array, torch.Tensor) and array.dtype is torch.int64
