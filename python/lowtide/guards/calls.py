"""Calls of PyTorch while forward is traced: noted, refused, or made such that the trace has what they do."""

import functools
import sys

import torch
from torch.overrides import TorchFunctionMode

from lowtide.errors import UnsupportedError

from .checks import answer_that_goes_on, checked, writes_what_a_check_says
from .code import asks_itself
from .data import Computed
from .dropouts import DROPOUTS, dropped
from .finite import FiniteNumbers
from .foreach import is_foreach, one_by_one
from .frozen_leaves import SETS_GRADIENT
from .noise import NOISE, noised
from .norms import NORMS, normed
from .plain_numbers import CONVERSIONS
from .questions import ASKS
from .readers import outwards, readers
from .real_tensors import RealTensors
from .selections import Selections
from .slices import ask_for_ends, ask_for_mask_of_selection, ask_for_masks
from .tables import READ
from .traced_draws import MAKERS, called, has_drawn
from .written_out import WRITTEN_OUT, written_out

_HOOKS_ON_TENSORS = frozenset(
    (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook, torch.Tensor.retain_grad)
)
_ASKS_FOR_GRADIENT = torch.Tensor.requires_grad.__get__
_ASKS_FOR_DATA, _SETS_DATA = torch.Tensor.data.__get__, torch.Tensor.data.__set__
_TAKE_SIZES = frozenset((torch.nn.functional.pad, torch.Tensor.__getitem__))
_WRITES_BY_INDEX = frozenset((torch.index_put, torch.index_put_, torch.Tensor.index_put, torch.Tensor.index_put_))
_SELECTS = frozenset((torch.masked_select, torch.Tensor.masked_select))
_READS_NUMBERS = frozenset((torch.Tensor.tolist, torch.Tensor.item))
_GIVES_NUMBERS = frozenset((torch.Tensor.tolist, torch.Tensor.__repr__))  # without an op that a trace would see
_ASKS_FOR_TRUTH = frozenset((torch.Tensor.__bool__, torch.Tensor.item))
_CHECKS_ALL = torch._check_tensor_all_with.__code__  # asks for a bool, to raise where it is False
_CHUNKS_A_LOSS = getattr(torch.nn.functional, "linear_cross_entropy", object())  # PyTorch 2.13's
_TEXTS = frozenset((torch.Tensor.__repr__, torch.Tensor.__format__))


class Calls(TorchFunctionMode):
    """Sees what forward calls of PyTorch."""

    def __init__(self, observation):
        super().__init__()
        self._observation = observation
        self._computed = Computed()
        self._finite, self.selections = FiniteNumbers(), Selections()
        self.real = RealTensors(observation.seen)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        frame, past_autograd = sys._getframe(1), self._observation.past_autograd
        self._observation.ran(frame)
        leaves = self._observation.frozen_leaves
        args, kwargs = leaves.out_of(func, args, kwargs)
        took_gradient = args[0].requires_grad if func in SETS_GRADIENT else None
        if is_foreach(func) or func in WRITTEN_OUT:
            with self:
                is_done, result = (one_by_one if is_foreach(func) else written_out)(func, args, kwargs or {})
            if is_done:
                return result
        if func in _HOOKS_ON_TENSORS:
            raise UnsupportedError(f"forward calls Tensor.{func.__name__}")
        if kwargs and isinstance(kwargs.get("generator"), torch.Generator):
            raise UnsupportedError("forward draws from a generator of its own")
        if func == _ASKS_FOR_GRADIENT and asks_itself(frame):
            self._observation.seen.asks_for_gradients = True
        if func in ASKS and asks_itself(_asking(frame)):
            is_answered, answer = self._observation.given.answer(func, args, kwargs or {})
            if is_answered:
                return answer
        if func is torch.Tensor.__bool__ and frame.f_globals.get("__name__") == "torch.nn.modules.transformer":
            return False  # whether a mask is the causal one, a hint only: attention gets the mask itself
        if func in CONVERSIONS:
            self._observation.plain_numbers.note(func, args[0], frame)
        if func in READ:
            self._observation.listed.note_read(args[0])
        if func in _GIVES_NUMBERS:
            self._observation.seen.note_numbers(args[0])
        if func in _READS_NUMBERS and not self._observation.readers:
            self._observation.readers = readers(outwards(frame))
        if func in _TAKE_SIZES:
            rest, kwargs = self._observation.given.answers.sizes_in((args[1:], kwargs))
            args = (*args[:1], *rest)
        if func is torch.Tensor.__getitem__:
            ask_for_ends(args[1])
        elif func is torch.Tensor.__setitem__:
            ask_for_masks(*args)
        elif func in _WRITES_BY_INDEX and len(args) > 2 and isinstance(args[1], tuple | list):
            ask_for_masks(args[0], tuple(args[1]), args[2])
        elif func in _SELECTS and len(args) == 2:
            ask_for_mask_of_selection(*args)
        if func is _CHUNKS_A_LOSS:
            # Its chunks are a way to need less memory, which the engine has of its own; their sizes would be constants.
            kwargs = {**kwargs, "options": None}
        if func is torch.as_tensor and args and isinstance(args[0], int | list | tuple | torch.SymInt):
            func = torch.tensor  # the same of what is no tensor, without sizes as constants
        if func is torch.argwhere or func is torch.Tensor.argwhere:
            func = torch.nonzero
        if func in DROPOUTS and (result := dropped(func, self._observation, args, kwargs or {})) is not None:
            return result
        if func in NOISE and (result := noised(func, self._observation, args, kwargs or {})) is not None:
            return result
        if func in NORMS and (result := normed(func, self._observation, args, kwargs or {})) is not None:
            return result
        func = self.selections.sized(func, args, kwargs or {})
        if func == _ASKS_FOR_DATA:
            func, args = past_autograd.data_of, args[:1]
        elif func == _SETS_DATA:
            if args[0] is not args[1]:
                self._computed.set_data(*args)
                past_autograd.write(args[0])
            return None
        result = past_autograd.call(functools.partial(self._call, frame=frame), func, args, kwargs or {})
        if func in _TEXTS:
            self._observation.comparisons.note_text(args[0], result, _asking(frame))
        if took_gradient is not None:
            leaves.note(args[0], took_gradient)
            self._observation.seen.asks_for_gradients = True
        self._observation.behind_calls()
        self._computed.note(result, args)
        self._observation.listed.note(func, args, kwargs, result)
        self._finite.note(func, args, result)
        self.selections.note(func, args, kwargs or {}, result)
        self._observation.made(result)
        self._observation.caches.note(func, args, kwargs, result)
        return result

    def _call(self, func, args, kwargs, frame):
        draws, tables = self._observation.draws, self._observation.tables
        if tables:
            is_known, result = tables.call(func, args, kwargs)
            if is_known:
                return result
            args, kwargs = result
        if draws and has_drawn(args, kwargs):
            return called(func, args, kwargs, draws)
        if func in MAKERS and (drawn := draws.tensor(func, args, kwargs)) is not None:
            return drawn
        if func is torch.Tensor.__bool__ and (answer := answer_that_goes_on(frame)) is not None:
            return checked(*args, answer)
        if func is torch.Tensor.item and frame.f_code is _CHECKS_ALL:
            return checked(*args, True)
        as_usual = self._observation.takes_as_usual and func in _ASKS_FOR_TRUTH
        if as_usual and (answer := self._finite.answer(args[0])) is not None:
            return checked(*args, answer)
        answers = self._observation.given.answers
        if func not in CONVERSIONS or not self._observation.plain_numbers.asked_by:  # which makes a number of it
            is_answered, answer = answers.of_call(func, args, kwargs, frame)
            if is_answered:
                return answer
        if self._observation.takes_as_usual and self.selections.tell(args):
            with self:  # the numbers of a loop are known to `answers`
                is_answered, answer = self.selections.answer(func, args)
            if is_answered:
                return answer
        if func is torch.Tensor.__format__ and _is_number(args[0]) and not writes_what_a_check_says(_asking(frame)):
            with self:
                number = answers.own_number(args[0].item(), _asking(frame))
            if number is not None:
                return format(number, *args[1:])
        write = answers.of_write(func, args, kwargs)
        result = self.real.call(func, args, kwargs)
        answers.note(func, args, kwargs, result, write)
        self.selections.note_numbers(func, args, result)
        return result


def _is_number(tensor):
    return not tensor.dim() and not tensor.is_floating_point() and not tensor.is_complex()


def _asking(frame):
    """That which calls a method of Tensor's that is Python code."""
    while frame.f_globals.get("__name__") in ("torch._tensor", "torch.overrides"):
        frame = frame.f_back
    return frame
