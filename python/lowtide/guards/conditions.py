"""Conditions on sizes that forward branches on. The exporter answers those that tell an empty tensor from others
without a word, as if no size were 0 or 1: noted here, they become guards."""

import sys

import torch

from .code import is_ours

_LAYERS = ("torch.nn.modules.", "torch.nn.functional")


def answering(note):
    """In the place of SymBool.__bool__; note(condition, answer) hears what users' code and PyTorch's layers ask."""
    ask = torch.SymBool.__bool__

    def answer(condition):
        found = ask(condition)
        frame = sys._getframe(1)
        if frame.f_code.co_name == "__bool__":  # of a size
            frame = frame.f_back
        name = frame.f_globals.get("__name__") or ""
        if not is_ours(name) or name.startswith(_LAYERS):
            note(condition.node.expr, found)
        return found

    return answer
