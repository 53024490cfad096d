"""`if not torch.compiler.is_compiling():` in forward. Nothing is, to eager; where forward has no graph as
it is compiled, it may have one as eager runs it: LongT5 makes its mask there."""

import contextlib
import sys

import torch
import torch._dynamo

from .code import is_ours
from .replaced import replaced_attribute

_QUESTIONS = ("is_compiling", "is_dynamo_compiling", "is_exporting")


class Compiling:
    """Of one trace."""

    def __init__(self, is_running):
        self._is_running, self.was_asked = is_running, False

    @contextlib.contextmanager
    def answered(self, as_eager):
        """`as_eager`: whether users' code hears that nothing is compiled."""
        # Dynamo's table of PyTorch's functions is made of their names, anew after init_process_group: not of stand-ins.
        torch._dynamo.trace_rules.get_torch_obj_rule_map()
        with contextlib.ExitStack() as stack:
            for name in _QUESTIONS:
                answer = self._answering(getattr(torch.compiler, name), as_eager)
                stack.enter_context(replaced_attribute(torch.compiler, name, answer))
            yield

    def _answering(self, ask, as_eager):
        def answer():
            if not self._is_running() or is_ours(sys._getframe(1).f_globals.get("__name__")):
                return ask()
            self.was_asked = True
            return False if as_eager else ask()

        return answer
