"""Changes of grad mode in a trace: torch.export keeps them as regions of its program, and loses some."""

import contextlib
import operator
import threading

import torch
from torch.overrides import TorchFunctionMode

from lowtide.errors import UnsupportedError
from lowtide.guards.replaced import replaced_attribute


class _BetweenAutocasts(TorchFunctionMode):
    """Ends the regions of torch.autocast that are open where the grad mode changes, and begins them again behind it:
    torch.export makes no region without gradients inside of one of autocast, and its calls would have gradients."""

    def __init__(self):
        super().__init__()
        self.open = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not torch._C._set_grad_enabled or not self.open:
            return func(*args, **(kwargs or {}))
        for autocast in reversed(self.open):
            _leave(autocast, None, None, None)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            for autocast in self.open:
                _enter(autocast)


_enter, _leave = torch.autocast.__enter__, torch.autocast.__exit__


@contextlib.contextmanager
def grad_modes_between_autocasts():
    """While active, this thread's changes of grad mode lie outside of regions of autocast in the trace."""
    mode, thread = _BetweenAutocasts(), threading.get_ident()

    def enter(self):
        if threading.get_ident() == thread:
            mode.open.append(self)
        return before_enter(self)

    def leave(self, *raised):
        if threading.get_ident() == thread and mode.open and mode.open[-1] is self:
            mode.open.pop()
        return before_leave(self, *raised)

    before_enter, before_leave = torch.autocast.__enter__, torch.autocast.__exit__
    with (
        replaced_attribute(torch.autocast, "__enter__", enter),
        replaced_attribute(torch.autocast, "__exit__", leave),
        mode,
    ):
        yield


def refuse_lost_gradients(program, takes_gradient):
    """UnsupportedError where an output that took a gradient while forward was traced is computed without gradients in
    `program`: torch.export records calls of set_grad_enabled, and loses one where hooks of autograd make it.
    `takes_gradient`: per output of the user's."""
    outputs = program.graph.output_node().args[0][-len(takes_gradient) :] if takes_gradient else ()
    for node, wanted in zip(outputs, takes_gradient, strict=True):
        if wanted and _is_without_gradients(program.graph_module, node):
            raise UnsupportedError(
                "torch.export lost a change of grad mode: an output that takes a gradient is computed without one"
            )


def _is_without_gradients(owner, node):
    if node.target is not operator.getitem:
        return False
    region, index = node.args
    if region.target is not torch.ops.higher_order.wrap_with_set_grad_enabled or region.args[0]:
        return False
    body = getattr(owner, region.args[1].target)
    made = body.graph.output_node().args[0][index]
    # What the region is given, and views of it, keep their own gradient, also where it writes into them.
    schema = getattr(made.target, "_schema", None)
    shares = schema is not None and any(result.alias_info is not None for result in schema.returns)
    return made.op == "call_function" and not shares
