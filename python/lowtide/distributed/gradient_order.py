"""DeepSpeed's ZeRO stages 1 and 2 add up what hooks of parameters bring, in the order in which they bring it: gradients
have to leave in the same order in all processes, or sums would be of different parameters."""

import contextlib
import hashlib

from lowtide.errors import DifferentProcesses, Error, UnsupportedModel

from .meeting import Meeting
from .partitions import is_partitioned
from .roll_call import call_roll, processes_text

_PYTORCH = "PyTorch"  # in the place of a hash


class GradientOrder:
    """Of one module in training, for all its calls. Processes tell each other the order before the first step, and
    again where it changes, so that how often each calls the module is its own business."""

    is_needed, gathers = True, False

    def __init__(self, module, group):
        self._module, self.meeting = module, Meeting.of(group, f"order/{type(module).__name__}")
        self._agreed = None  # what all do
        self._refusal = None
        if self.meeting is not None:
            call_roll(self.meeting, module)

    @contextlib.contextmanager
    def reached(self, prepare):
        """As Agreement.reached."""
        if self.meeting is None or not self._module.training:
            yield prepare()[0]
            return
        if self._refusal is not None:
            raise self._refusal
        try:
            prepared, text = prepare()
        except Error:
            with contextlib.suppress(UnsupportedModel):  # each has its own reason
                self._agree(_PYTORCH)
            raise
        self._agree(hashlib.sha256(text.encode()).hexdigest())
        yield prepared

    def whole_shapes(self):
        return contextlib.nullcontext()

    def _agree(self, order):
        if order == self._agreed:
            return
        told = self.meeting.exchange(order)
        if missing := [rank for rank in self.meeting.ranks if rank not in told]:
            what = "leave in another order than before" if self._agreed else "are about to leave for the first time"
            raise DifferentProcesses(
                f"gradients {what} in this process, and DeepSpeed adds them up by their order: within the group's "
                f"timeout {processes_text(missing)} did not come to the same"
            )
        if set(told.values()) == {order}:
            self._agreed = order
            return
        self._refusal = UnsupportedModel(f"{self._why(told)}; DeepSpeed adds gradients up by their order")
        raise self._refusal

    def _why(self, told):
        if in_pytorch := [rank for rank, order in told.items() if order == _PYTORCH]:
            return f"PyTorch runs the module of {processes_text(in_pytorch)}"
        first = self.meeting.ranks[:1]
        others = [rank for rank, order in told.items() if order != told[first[0]]]
        return (
            f"gradients of {processes_text(others)} leave in another order than those of {processes_text(first)}: "
            "their graphs, or under a memory budget their plans, are not the same"
        )


def reducing_group(parameter):
    """The processes among which ZeRO stage 1 or 2 reduces its gradient; None where none does."""
    return None if is_partitioned(parameter) else getattr(parameter, "_dp_group", None)
