"""Conditions on sizes that forward branches on. The exporter answers those that tell an empty tensor from others
without a word, as if no size were 0 or 1: noted here, they become guards."""

import sys

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from .checks import answer_that_goes_on
from .code import is_ours

_LAYERS = ("torch.nn.modules.", "torch.nn.functional")


def answering(note):
    """In the place of SymBool.__bool__; note(condition, answer) hears what users' code and PyTorch's layers ask."""
    ask = torch.SymBool.__bool__

    def answer(condition):
        frame = sys._getframe(1)
        if frame.f_code.co_name == "__bool__":  # of a size
            frame = frame.f_back
        if _is_of_counts(condition) and (goes_on := answer_that_goes_on(frame)) is not None:
            torch._check(condition if goes_on else torch.sym_not(condition))
            return goes_on
        found = ask(condition)
        name = frame.f_globals.get("__name__") or ""
        if not is_ours(name) or name.startswith(_LAYERS):
            note(condition.node.expr, found)
        return found

    return answer


def _is_of_counts(condition):
    """Whether it depends on whole numbers from data, and on no others: steps check no comparison of real ones."""
    return free_unbacked_symbols(condition) and all(symbol.is_integer for symbol in condition.node.expr.free_symbols)
