"""Questions whether anything was selected by a label: `if (experts == expert).any():`, `if counts[expert] == 0:`,
`for expert in counts.nonzero():`. A graph is that of calls in which each label selects something, and its steps check
it: where an expert has no rows, its parameters have no gradient, and no graph has both."""

import operator
import weakref

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from .checks import checked
from .data import version_of
from .values import MOST_TIMES

_MANY = 2**40  # as many as any


def _functions(*names):
    return frozenset(getattr(owner, name) for name in names for owner in (torch, torch.Tensor) if hasattr(owner, name))


_COMPARE = {
    function: getattr(operator, short)
    for short, names in {
        "eq": ("eq", "__eq__"),
        "ne": ("ne", "not_equal", "__ne__"),
        "gt": ("gt", "greater", "__gt__"),
        "ge": ("ge", "greater_equal", "__ge__"),
        "lt": ("lt", "less", "__lt__"),
        "le": ("le", "less_equal", "__le__"),
    }.items()
    for function in _functions(*names)
}
_VIEWS = _functions(
    *("view", "reshape", "flatten", "permute", "transpose", "t", "squeeze", "unsqueeze", "contiguous", "__getitem__"),
    *("to", "long", "int", "float", "detach", "clone", "select", "ravel"),
)
_ANY, _SUM, _NONZERO = _functions("any"), _functions("sum", "count_nonzero"), _functions("nonzero", "argwhere", "where")
_OF_TWO = _functions(
    *("logical_or", "bitwise_or", "logical_and", "bitwise_and", "__or__", "__and__"),
    *("mul", "multiply", "__mul__"),
)
_BINCOUNT = _functions("bincount")
_ONE_HOT, _UNIQUE = frozenset((torch.nn.functional.one_hot,)), _functions("unique")
_CHOOSE = _functions("topk", "sort", "argsort", "max", "min", "argmax", "argmin", "multinomial")
_ASK, _NUMBERS = (torch.Tensor.__bool__, torch.Tensor.item), (torch.Tensor.item, torch.Tensor.tolist)
_ROWS = (torch.Tensor.unbind, torch.unbind, torch.Tensor.tolist)


class Selections:
    """Of one run of forward: tensors that tell what labels select.

    ("mask", None): whether numbers are a label; ("count", None): of how many that holds; ("is", answer): what each
    element is where all of that are many; ("rows", (n, of what)): the n labels that select something, if all do;
    ("below", n): labels. What was written into since tells nothing.
    """

    def __init__(self):
        self._known = {}  # id → (weak reference, version, kind, what)

    def _of(self, tensor):
        reference, version, *known = self._known.get(id(tensor), (None, None, None, None))
        is_it = reference is not None and reference() is tensor and _version_of(tensor) == version
        return known if is_it else (None, None)

    def _note(self, tensor, kind, what=None):
        if isinstance(tensor, torch.Tensor):
            self._known[id(tensor)] = weakref.ref(tensor), _version_of(tensor), kind, what

    def sized(self, func, args, kwargs):
        """`func`, or what does the same and whose result is as large for all data: counts of labels that are below
        `minlength`."""
        if func in _BINCOUNT and args and args[0].dim() == 1:
            kind, below = self._of(args[0])
            given = dict(zip(("weights", "minlength"), args[1:], strict=False)) | kwargs
            if kind == "below" and given.get("weights") is None and below <= _whole(given.get("minlength")):
                return _counts
        return func

    def note(self, func, args, kwargs, result):
        """`result`: of a call with these arguments."""
        if func in _COMPARE and len(args) == 2:
            self._compared(func, args, result)
        elif func in _ONE_HOT:
            self._note(result, "mask")
        elif func is _counts:
            self._note(result, "count")
        elif func in _CHOOSE:
            self._chosen(func, args, kwargs, result)
        elif self._known and args and (known := self._of(args[0]))[0] is not None:
            self._computed(func, args, kwargs, result, *known)

    def _compared(self, func, args, result):
        kind, _ = self._of(args[0])
        if kind == "count" and type(args[1]) is int:
            answers = {_COMPARE[func](many, args[1]) for many in (2, 3, _MANY)}
            if len(answers) == 1:
                self._note(result, "is", answers.pop())
        elif all(type(each) is int or isinstance(each, torch.Tensor) and _is_whole(each) for each in args):
            self._note(result, "mask")

    def _chosen(self, func, args, kwargs, result):
        """The indices of a dim, of a size that is known."""
        found = result[1] if isinstance(result, tuple) and len(result) == 2 else result
        dim = kwargs.get("dim", -1 if func not in _functions("max", "min", "argmax", "argmin") else None)
        if func in _functions("topk") and len(args) > 2:
            dim = args[2]
        elif func not in _functions("topk", "multinomial") and len(args) > 1:
            dim = args[1]
        if type(dim) is int and isinstance(found, torch.Tensor) and found.dtype is torch.int64 and args[0].dim():
            if type(size := args[0].shape[dim]) is int:
                self._note(found, "below", size)

    def _computed(self, func, args, kwargs, result, kind, what):
        # (experts == expert).any(-1) is a mask of rows, perhaps.
        selects = kind == "mask" or (kind, what) == ("is", True)
        if func in _VIEWS:
            self._note(result, kind, what)
        elif func in _ANY and selects:
            self._note(result, "is", True)
        elif func in _SUM and (selects or kind == "count"):
            self._note(result, "count")
        elif func in _OF_TWO and kind == "mask" and self._of(args[-1])[0] == "mask":
            self._note(result, kind)
        elif func in _NONZERO and len(args) == 1 and (kind == "count" or (kind, what) == ("is", True)):
            if args[0].dim() == 1 and type(count := args[0].shape[0]) is int:
                self._note(result[0] if isinstance(result, tuple) else result, "rows", (count, args[0]))
        elif func in _UNIQUE and kind == "below" and isinstance(result, torch.Tensor) and result.dim() == 1:
            self._note(result, "rows", (what, args[0]))

    def tell(self, args):
        """Whether something is known of the first of a call's arguments."""
        return bool(args) and self._of(args[0])[0] is not None

    def answer(self, func, args):
        """(whether it is answered, the answer) of a call that gives what Python asks for."""
        kind, what = self._of(args[0])
        if func in _ASK and kind == "is" and args[0].numel() == 1 and args[0].dtype is torch.bool:
            return True, checked(args[0], what)
        if func is torch.Tensor.__bool__ and kind == "count" and args[0].numel() == 1:
            return True, checked(args[0], True)
        if func in _ROWS and kind == "rows" and args[1:] in ((), (0,)) and _may_be_many(args[0], what[0]):
            count, source = what
            if (of_source := self._of(source)[0]) is None:
                return False, None
            if of_source == "below":
                source = torch.zeros(count, dtype=torch.int64).scatter(0, source.reshape(-1), 1)
            checked((source != 0).all(), True)
            if func is torch.Tensor.tolist:
                return True, list(range(count)) if args[0].dim() == 1 else [[row] for row in range(count)]
            return True, torch.arange(count).view(count, *args[0].shape[1:]).unbind()
        return False, None

    def note_numbers(self, func, args, numbers):
        """What item() or tolist() gave of counts is not less than 0."""
        if func in _NUMBERS and self.tell(args) and self._of(args[0])[0] == "count":
            for number in numbers if isinstance(numbers, list) else [numbers]:
                if isinstance(number, torch.SymInt):
                    torch._check(number >= 0)


def _counts(labels, weights=None, minlength=0):
    labels = labels.to(torch.int64)
    counts = torch.zeros(minlength, dtype=torch.int64, device=labels.device)
    return counts.scatter_add(0, labels, torch.ones_like(labels))


def _whole(number):
    return number if type(number) is int else -1


def _may_be_many(rows, count):
    """Whether data tells how many rows there are, each of one number."""
    size = rows.shape[0]
    if not isinstance(size, torch.SymInt) or not free_unbacked_symbols(size) or count > MOST_TIMES:
        return False
    return rows.dim() == 1 or rows.dim() == 2 and rows.shape[1] == 1


def _version_of(tensor):
    with torch._C.DisableTorchFunction():  # whoever sees calls asks here
        return version_of(tensor)


def _is_whole(tensor):
    with torch._C.DisableTorchFunction():  # asking is no computing with a number that forward has drawn
        return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype is not torch.bool
