"""Questions whether numbers are finite: `if not torch.isfinite(h).all(): h = h.clamp(-limit, limit)`. A graph is that
of numbers that are, and its steps check it."""

import weakref

import torch

# function → what each element of its result is where all numbers are finite
_OF_NUMBERS = {
    function: name == "isfinite"
    for name in ("isfinite", "isinf", "isnan", "isposinf", "isneginf")
    for function in (getattr(torch, name), getattr(torch.Tensor, name))
}
_SAME = frozenset((torch.all, torch.any, torch.Tensor.all, torch.Tensor.any))
_OTHER = frozenset((torch.logical_not, torch.bitwise_not, torch.Tensor.logical_not, torch.Tensor.__invert__))
_OF_TWO = frozenset(
    (torch.logical_or, torch.logical_and, torch.bitwise_or, torch.bitwise_and)
    + (torch.Tensor.logical_or, torch.Tensor.logical_and, torch.Tensor.__or__, torch.Tensor.__and__)
)


class FiniteNumbers:
    """Tensors of one run of forward that hold nothing but answers to such questions."""

    def __init__(self):
        self._known = {}  # id → (weak reference, what each element is)

    def note(self, func, args, result):
        """`result`: of a call with these arguments."""
        answer = self._answer_of(func, args)
        if answer is not None and isinstance(result, torch.Tensor):
            self._known[id(result)] = weakref.ref(result), answer

    def answer(self, tensor):
        """What each of the tensor's elements is, or None where that is no such question."""
        reference, answer = self._known.get(id(tensor), (None, None))
        return answer if reference is not None and reference() is tensor else None

    def _answer_of(self, func, args):
        if func in _OF_NUMBERS:
            return _OF_NUMBERS[func]
        if func in _SAME:
            return self.answer(args[0]) if args else None
        if func in _OTHER:
            known = self.answer(args[0])
            return None if known is None else not known
        if func in _OF_TWO and len(args) == 2:
            first, second = map(self.answer, args)
            return first if first == second else None
        return None
