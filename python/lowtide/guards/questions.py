"""What forward asks of the tensors that it is given, but for their numbers and sizes: whether one is contiguous, a
leaf, a view, has a gradient. What stands for them in a trace would answer for itself, so the call's own tensors answer;
a graph is right for calls whose tensors answer the same.
"""

import sys
from dataclasses import dataclass

import torch

from lowtide.errors import UnsupportedError, UnsupportedModel

from .answers import Answers
from .code import asks_itself


def _order(tensor):
    """Its dims, the one with the largest stride first; None where elements lie apart or on each other."""
    order = sorted(range(tensor.dim()), key=lambda dim: (-tensor.stride(dim), dim))
    dense = torch.empty_permuted(tensor.shape, order, dtype=tensor.dtype, device="meta").stride()
    together = zip(tensor.shape, tensor.stride(), dense, strict=True)
    return order if all(size == 1 or ours == other for size, ours, other in together) else None


def _stride_order(tensor):
    """As `_order`, and row-major order of one with gaps too: what is computed of both lies alike."""
    order = _order(tensor)
    strides = tensor.stride()
    return list(range(tensor.dim())) if order is None and list(strides) == sorted(strides, reverse=True) else order


def _is_not(name):
    return lambda tensor: getattr(tensor, name) is None


def _fills_memory(tensor):
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


# name → what is asked
QUESTIONS = {
    "has no gradient": _is_not("grad"),
    "has no grad_fn": _is_not("grad_fn"),
    "is no view": _is_not("_base"),
    "is a leaf": lambda tensor: tensor.is_leaf,
    "retains its gradient": lambda tensor: tensor.retains_grad,
    "is contiguous": lambda tensor: tensor.is_contiguous(),
    "is contiguous in channels_last": lambda tensor: tensor.is_contiguous(memory_format=torch.channels_last),
    "is contiguous in channels_last_3d": lambda tensor: tensor.is_contiguous(memory_format=torch.channels_last_3d),
    "begins in its memory at": lambda tensor: tensor.storage_offset(),
    "has its dims in the order": _order,
    "has strides as one without gaps in the order": _stride_order,
    "is all of its memory": _fills_memory,
    "holds the number": lambda tensor: tensor.item() if tensor.numel() == 1 else None,
    "is shared between processes": lambda tensor: tensor.is_shared(),
}
_OF_FORMATS = {torch.channels_last: " in channels_last", torch.channels_last_3d: " in channels_last_3d"}
_GRADIENT, _GRAD_FN = torch.Tensor.grad.__get__, torch.Tensor.grad_fn.__get__
_BASE, _VERSION = torch.Tensor._base.__get__, torch.Tensor._version.__get__
_MUST_BE_NONE = {_GRADIENT: "has no gradient", _GRAD_FN: "has no grad_fn", _BASE: "is no view"}
_PLAIN = {
    torch.Tensor.is_leaf.__get__: "is a leaf",
    torch.Tensor.retains_grad.__get__: "retains its gradient",
    torch.Tensor.storage_offset: "begins in its memory at",
    torch.Tensor.is_shared: "is shared between processes",
}
_MEMORY = torch.Tensor.untyped_storage
ASKS = frozenset((*_MUST_BE_NONE, *_PLAIN, _VERSION, torch.Tensor.is_contiguous, torch.Tensor.stride, _MEMORY))


def _attribute(tensor, name):
    """[] where there is none, else its class and it; the class alone where it is no plain value."""
    if name not in vars(tensor):
        return []
    value = vars(tensor)[name]
    kind = type(value).__name__
    return [kind, value] if type(value) in (bool, int, float, str, type(None)) else [kind]


@dataclass(frozen=True)
class Question:
    kind: str  # "argument", or "tensor" of the module
    place: int | str  # among the call's tensors, or the path in the module
    words: str  # of the tensor
    name: str  # of QUESTIONS, or of an attribute that somebody has set
    answer: object  # of an attribute: [its class, it], or []

    def ask(self, tensors, module):
        tensor = tensors[self.place] if self.kind == "argument" else _at(module, self.place)
        return QUESTIONS[self.name](tensor) if self.name in QUESTIONS else _attribute(tensor, self.name)

    def change(self, tensors, module):
        """In words, where the answer is another one."""
        if self.name not in QUESTIONS:
            was, now = ((answer or ["nothing"])[-1] for answer in (self.answer, self.ask(tensors, module)))
            return f"attribute `{self.name}` of {self.words} was {was}, is now {now}"
        return f"whether {self.words} {self.name}: was {self.answer}, is now {self.ask(tensors, module)}"


def first_other(questions, tensors, module):
    """The first Question that these tensors answer in another way, or None."""
    return next((each for each in questions if each.ask(tensors, module) != each.answer), None)


def _at(module, path):
    for name in path.split("."):
        module = getattr(module, name)
    return module


def named_tensors(module):
    """{path: parameter or buffer}, each under all of its names."""
    every = {"remove_duplicate": False}
    return dict((*module.named_parameters(**every), *module.named_buffers(**every)))


def attributes_of(given, is_running):
    """torch.Tensor.__getattr__ while forward is traced, and what stands for a tensor has no attribute of its own."""

    def found(stand_in, name):
        if is_running() and name[:2] != "__" and asks_itself(sys._getframe(1)):
            return given.attribute(stand_in, name)
        raise _no_attribute(stand_in, name)

    return found


def _no_attribute(tensor, name):
    return AttributeError(f"{type(tensor).__name__!r} object has no attribute {name!r}")


class Given:
    """The tensors that stand for a call's in a trace, and those themselves."""

    def __init__(self):
        self.asked = {}  # Question's kind, place and name → Question
        self._known = {}  # id of what stands for a tensor → (it, (kind, place, words), the tensor)
        self.answers = Answers()

    def add(self, stand_in, tensor, kind, place, words):
        self._known.setdefault(id(stand_in), (stand_in, (kind, place, words), tensor))

    def begin(self):
        """Of another run of forward."""
        self.asked = {}
        self.answers.begin(self._known)

    def end(self):
        self._known = {}
        self.answers.end()

    def questions(self):
        return (*self.asked.values(), *self.answers.questions())

    def answer(self, function, args, kwargs):
        """(whether the question was answered here, the answer). UnsupportedError where no graph may know it."""
        if function == _BASE and (base := function(*args)) is not None:
            if id(base) in self._known:
                self._none(base, "is no view")
            return True, base
        if id(args[0]) not in self._known:
            return False, None
        if function in _MUST_BE_NONE:
            return True, self._none(args[0], _MUST_BE_NONE[function])
        if function == _VERSION:
            raise UnsupportedModel(f"forward counts the changes of {self._words(args[0])}")
        if function == torch.Tensor.stride:
            if self._note(args[0], "has its dims in the order") is None:
                raise UnsupportedModel(f"forward asks for the strides of {self._words(args[0])}, which has gaps")
            return False, None
        if function == _MEMORY:
            if not self._note(args[0], "is all of its memory"):
                raise UnsupportedModel(f"forward asks for the memory of {self._words(args[0])}, which has gaps")
            return False, None
        if function == torch.Tensor.is_contiguous:
            memory_format = kwargs.get("memory_format", args[1] if len(args) > 1 else None)
            return True, self._note(args[0], f"is contiguous{_OF_FORMATS.get(memory_format, '')}")
        return True, self._note(args[0], _PLAIN[function])

    def note_number(self, stand_in):
        """A buffer's, which the graph has as a constant."""
        self._note(stand_in, "holds the number")

    def attribute(self, stand_in, name):
        """What somebody has set on the tensor; AttributeError where nobody has."""
        if id(stand_in) in self._known:
            _, (kind, place, words), tensor = self._known[id(stand_in)]
            answer = _attribute(tensor, name)
            if len(answer) == 1:
                raise UnsupportedError(f"forward reads the attribute `{name}` of {words}, a {answer[0]}")
            self.asked[kind, place, name] = Question(kind, place, words, name, answer)
            if answer:
                return answer[1]
        raise _no_attribute(stand_in, name)

    def _none(self, stand_in, name):
        if not self._note(stand_in, name):
            kind = UnsupportedError if name == "has no gradient" else UnsupportedModel  # Dynamo guards gradients only
            raise kind(f"forward asks whether {self._words(stand_in)} {name}, and it has one")

    def _note(self, stand_in, name):
        _, (kind, place, words), tensor = self._known[id(stand_in)]
        answer = QUESTIONS[name](tensor)
        self.asked[kind, place, name] = Question(kind, place, words, name, answer)
        return answer

    def _words(self, stand_in):
        return self._known[id(stand_in)][1][2]
