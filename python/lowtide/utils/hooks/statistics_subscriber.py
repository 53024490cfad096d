"""Statistics of what modules return, and of its gradients, a file for each."""

import errno
import os
import shutil
import warnings
from pathlib import Path

import torch

from lowtide.capture.inspections import Inspection, current_inspections
from lowtide.errors import InvalidArgument, UnsupportedError

from .manager import GlobalSubscriberManager, in_backward
from .measure import measure, refusal_of, summary_from
from .subscriber import SubscriberBase
from .summary_file import BACKWARD, FORWARD, append_order, file_name, write_summary

_PROBE_BYTES = 1 << 16  # what must fit on the disk before training starts


class StatisticsSubscriber(SubscriberBase):
    """Writes the statistics of each tensor that a module returns, and of its gradient, in the steps
    [start_step, end_step) (by default: all) below `output_dir`; summary_file.py tells how.

    override_output_dir  an output_dir of an earlier run may be there: its steps are removed. Else FileExistsError.
    run_on_cpu           copies tensors of other devices to the CPU whole, not in buckets.
    bucket_size          elements that are copied at a time where a tensor is not on the CPU. Tensors that are there
                         are read in place.

    Raises OSError where output_dir cannot be written or its disk is full, InvalidArgument for an empty range of steps.
    A disk that becomes full later stops the statistics with a warning, never the training.
    """

    def __init__(
        self,
        output_dir,
        start_step=None,
        end_step=None,
        override_output_dir=False,
        run_on_cpu=False,
        bucket_size=1 << 29,
    ):
        super().__init__(start_step, end_step)
        if isinstance(bucket_size, bool) or not isinstance(bucket_size, int) or bucket_size < 1:
            raise InvalidArgument(f"bucket_size: expected a number of elements, 1 or more, found {bucket_size!r}")
        self._output_dir = Path(output_dir)
        self._run_on_cpu, self._bucket_size = run_on_cpu, bucket_size
        self._written = _Written()
        self._prepare(override_output_dir)

    def _prepare(self, override):
        folder = self._output_dir
        if folder.exists():
            if not folder.is_dir():
                raise FileExistsError(errno.EEXIST, "output_dir is a file, expected a folder or nothing", str(folder))
            if not override:
                raise FileExistsError(
                    errno.EEXIST, "output_dir is there already; override_output_dir=True removes its steps", str(folder)
                )
            old = [path for path in folder.glob("step_*") if path.name[5:].isdigit()]
            if old:
                warnings.warn(f"removes the {len(old)} steps of an earlier run in {folder}", stacklevel=3)
            for path in old:
                shutil.rmtree(path)
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        try:
            with open(probe, "wb") as file:
                file.write(bytes(_PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OSError(
                error.errno, f"output_dir cannot be written: {os.strerror(error.errno)}", str(folder)
            ) from error
        finally:
            probe.unlink(missing_ok=True)

    def post_forward_tensor_apply_impl(self, run_rtx, module, tensor_idx, tensor):
        states = run_rtx.global_states
        number = states.module_to_module_index[module]
        name = f"{type(module).__name__}_{number}_{tensor_idx}th_output"
        return self.inspect(name, tensor, states.module_index_to_depth[number])

    def inspect(self, name, tensor, depth):
        """Records a tensor, and its gradient if it gets one, under `name` in the present step. Returns the tensor."""
        if torch.compiler.is_compiling():
            inspections = current_inspections()
            if inspections is not None:  # other exporters take the model as it is
                if reason := refusal_of(tensor):
                    self._warn_once(name, f"{name}: {reason}")
                    return tensor
                inspections.clock = GlobalSubscriberManager
                inspections.add(tensor, Inspection(self, name, depth))
            return tensor
        if in_backward():
            return tensor
        step = GlobalSubscriberManager.current_step
        inspection = Inspection(self, name, depth)
        self._measure(step, inspection, FORWARD, tensor)
        if tensor.requires_grad:
            # The gradient itself: a hook that returned something would replace it.
            tensor.register_hook(lambda gradient: self._measure(step, inspection, BACKWARD, gradient))
        return tensor

    def _measure(self, step, inspection, direction, tensor):
        if self._written.stopped:
            return
        try:
            with torch.no_grad():
                summary = measure(tensor, self._run_on_cpu, self._bucket_size)
        except UnsupportedError as error:
            self._warn_once(inspection.name, f"{inspection.name}: {error}")
            return
        self._record(step, inspection, direction, summary)
        self.end_records(step)

    # ---- what the engine calls, see lowtide.capture.inspections

    def record(self, step, inspection, direction, statistics):
        """Writes what the engine found of one tensor, as lowtide._lowtide.statistics gives it. Never raises because of
        the disk."""
        if not self._written.stopped:
            self._record(step, inspection, direction, summary_from(statistics))

    def end_records(self, step):
        """After all records of one half of a call."""
        names = self._written.take_unlisted()
        if names and not self._written.stopped:
            self._try(step, append_order, names)

    def _record(self, step, inspection, direction, summary):
        summary.name, summary.direction, summary.depth = inspection.name, direction, inspection.depth
        is_new = self._written.add(step, file_name(inspection.name, direction))
        if not is_new and direction == FORWARD:
            name = inspection.name
            self._warn_once(name, f"the name {name} is used more than once in a step; its file holds the last tensor")
        self._try(step, write_summary, summary)

    def _warn_once(self, name, message):
        if name not in self._written.warned:
            self._written.warned.add(name)
            warnings.warn(message, stacklevel=3)

    def _try(self, step, write, what):
        try:
            write(self._output_dir, step, what)
        except OSError as error:
            self._written.stopped = True
            warnings.warn(f"statistics end in step {step}: {error}; training goes on", stacklevel=2)


class _Written:
    """What is on the disk; an object of its own, since a graph may be made while it changes."""

    def __init__(self):
        self._files = {}  # step → names; of the latest steps
        self._unlisted = []  # written, and not in order.txt yet
        self.warned = set()
        self.stopped = False

    def add(self, step, name):
        """Whether the step had no file of that name."""
        names = self._files.setdefault(step, set())
        for old in [other for other in self._files if other < step - 16]:
            del self._files[old]
        is_new = name not in names
        names.add(name)
        if is_new:
            self._unlisted.append(name)
        return is_new

    def take_unlisted(self):
        names, self._unlisted = self._unlisted, []
        return names
