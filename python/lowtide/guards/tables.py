"""Tables of sizes: small integer tensors among the arguments, a row for each image or level (`image_grid_thw`), whose
numbers forward makes loops, sizes and places of, and numbers that modules keep in buffers (the stride of Encodec's
convolutions). Where a graph has to know them they are constants of it, and each call compares them
(docs/decisions/0028).

    grid_thw: a TableOfSizes among the arguments    a real tensor while forward is traced
    lengths = grid_thw.prod(-1)                     a real tensor, computed now
    x.split(lengths.tolist())                       split into [16, 24]
    x[lengths.cumsum(0) - 1]                        an index by a constant of the graph
"""

import weakref

import torch
import torch.utils._pytree as pytree

from lowtide.errors import UnsupportedError

from .traced_draws import elsewhere

_MOST_COLUMNS = 4  # time, height and width; a box
_MOST_ROWS = 64
_MOST_ELEMENTS = 2**16  # of what is computed of tables; more is the graph's to compute
_TAKE_INTEGERS = frozenset((torch.nn.functional.pad, torch.Tensor.__getitem__))  # beside the first argument
_PLAIN = (type(None), bool, int, str, torch.dtype, torch.device, torch.memory_format, torch.layout)
_LISTS = frozenset((torch.arange, torch.tensor))  # that tables are often compared and joined with
_NUMBERS = (*_PLAIN, float)
READ = frozenset((torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.__int__, torch.Tensor.__index__))


class TableOfSizes(str):
    """A table in its place among the arguments: a plain value, equal where dtype, shape and numbers are."""

    def __new__(cls, tensor):
        table = super().__new__(cls, f"{tensor.dtype} {tensor.tolist()}")
        table._numbers = tensor.detach().clone()
        return table

    def tensor(self):
        """A new one, outside of any trace."""
        return elsewhere(self._numbers.clone)


def is_table(value):
    return (
        type(value) is torch.Tensor
        and value.dtype in (torch.int32, torch.int64)
        and value.dim() == 2
        and 0 < value.shape[1] <= _MOST_COLUMNS
        and 0 < value.shape[0] <= _MOST_ROWS
        and value.device.type == "cpu"
    )


class ListedTensors:
    """Those that forward makes of numbers, and what it computes of them."""

    def __init__(self):
        self.are_read = False  # their numbers, in which a trace knows none
        self._tensors = {}  # id → weak reference

    def note(self, func, args, kwargs, result):
        if func not in _LISTS and not (self._tensors and any(map(self._is_one, args))):
            return
        if all(type(leaf) in _NUMBERS or self._is_one(leaf) for leaf in pytree.tree_leaves((args, kwargs))):
            made = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            self._tensors.update((id(tensor), weakref.ref(tensor)) for tensor in made)

    def note_read(self, tensor):
        self.are_read = self.are_read or self._is_one(tensor)

    def _is_one(self, tensor):
        reference = self._tensors.get(id(tensor))
        return reference is not None and reference() is tensor


class KnownTensors:
    """Tensors of one run of forward that are computed of nothing but tables and Python's numbers."""

    def __init__(self, arguments=(), numbers=(), questions=None, lists=False):
        """`arguments`: of forward; tensors of the trace are no plain ones. `numbers`: (what stands for it in the trace,
        a buffer of one number). `questions`: Given, which notes those that are read. `lists`: also what forward makes
        of numbers."""
        self._given = [leaf for leaf in pytree.tree_leaves(arguments) if type(leaf) is torch.Tensor and is_table(leaf)]
        self._known = {id(tensor): tensor for tensor in self._given}
        self._lists = _LISTS if self._given or lists else ()
        self._numbers, self._questions = {}, questions
        for stand_in, buffer in numbers:
            number = elsewhere(lambda buffer=buffer: buffer.detach().clone())
            self._numbers[id(stand_in)] = stand_in, number
            self._given.append(number)
            self._known[id(number)] = number
        self._constants = {}  # id → (version that it was made at, tensor of the graph, its version)

    def __bool__(self):
        return bool(self._given or self._numbers or self._lists)

    def call(self, func, args, kwargs):
        """(whether they alone tell its result, the result), else (False, (args, kwargs) as the graph takes them)."""
        if self._numbers:
            args, kwargs = pytree.tree_map_only(torch.Tensor, self._number, (args, kwargs))
            if func in _TAKE_INTEGERS:
                rest, kwargs = pytree.tree_map(self._integer, (args[1:], kwargs))
                args = (*args[:1], *rest)
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        known = [tensor for tensor in tensors if id(tensor) in self._known]
        if (known or func in self._lists) and len(known) == len(tensors) and all(map(_is_plain, leaves)):
            found, result = self._computed(func, args, kwargs)
            if found:
                return True, result
        return False, self.in_graph((args, kwargs)) if known else (args, kwargs)

    def _computed(self, func, args, kwargs):
        def compute():
            state = torch.default_generator.get_state()
            result = func(*args, **kwargs)
            if torch.equal(state, torch.default_generator.get_state()):
                return True, result
            torch.default_generator.set_state(state)
            return False, None

        found, result = elsewhere(compute)
        made = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if not found or any(tensor.numel() > _MOST_ELEMENTS for tensor in made):
            return False, None
        if func in _LISTS and any(tensor.is_floating_point() or tensor.requires_grad for tensor in made):
            return False, None
        self._known.update((id(tensor), tensor) for tensor in made)
        return True, result

    def _number(self, tensor):
        """The number itself in the place of what stands for it."""
        if id(tensor) not in self._numbers:
            return tensor
        self._questions.note_number(tensor)
        return self._numbers[id(tensor)][1]

    def _integer(self, leaf):
        if isinstance(leaf, slice):
            return slice(*map(self._integer, (leaf.start, leaf.stop, leaf.step)))
        return elsewhere(lambda: leaf.item()) if id(leaf) in self._known and leaf.dim() == 0 else leaf

    def in_graph(self, tree):
        """With constants of the graph in the places of known tensors."""
        return pytree.tree_map_only(torch.Tensor, self._constant, tree)

    def _constant(self, tensor):
        if id(tensor) not in self._known:
            return tensor
        self.refuse_writes()
        if id(tensor) not in self._constants:
            constant = torch.tensor(tensor.flatten().tolist(), dtype=tensor.dtype).reshape(tensor.shape)
            self._constants[id(tensor)] = tensor._version, constant, constant._version
            if self._numbers and not tensor.dim():
                self._questions.answers.note_constant(constant, elsewhere(tensor.item))
        return self._constants[id(tensor)][1]

    def refuse_writes(self):
        """UnsupportedError where forward has written into what the graph has as a constant, or into an argument."""
        written = any(tensor._version for tensor in self._given) or any(
            self._known[key]._version != version or constant._version != made
            for key, (version, constant, made) in self._constants.items()
        )
        if written:
            raise UnsupportedError("forward writes into a table of sizes or a number, or into what is computed of one")


def _is_plain(leaf):
    return (
        isinstance(leaf, torch.Tensor | float | slice) and not _has_symbols(leaf) or type(leaf) in _PLAIN or leaf is ...
    )


def _has_symbols(leaf):
    ends = (leaf.start, leaf.stop, leaf.step) if isinstance(leaf, slice) else ()
    return any(isinstance(end, torch.SymInt) for end in ends)
