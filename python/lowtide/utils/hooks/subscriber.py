"""What users extend to look at, or change, what flows through the modules of a model."""

import sys

import torch

from lowtide.errors import InvalidArgument, UnsupportedError


class GlobalStates:
    """What all hooks of one subscription share."""

    def __init__(self):
        self._step = 0
        self.module_to_module_index = {}  # module → its number: depth first, the outermost is 0
        self.module_index_to_depth = {}  # number → depth, the outermost is 1

    @property
    def execution_step(self):
        """How many calls of the outermost module have ended."""
        if torch.compiler.is_compiling():
            raise UnsupportedError("a subscriber reads the step, which a graph would freeze")
        return self._step


class RuntimeStates:
    """The context that each hook of a subscriber is given."""

    def __init__(self):
        self.global_states = GlobalStates()


class SubscriberBase:
    """Called before and after the forward of each module of a model that it is subscribed to, in the steps
    [start_step, end_step); without: in all. A step ends with a call of the outermost module.

    Override what you need of the methods that end in `_impl`. Each returns what it was given, or what shall take its
    place: args and kwargs of a module, its outputs, or one tensor of either. Tensors of args (and kwargs) and of
    outputs are found in any containers that PyTorch knows, and are counted from 0.

    Around a wrapped module (ORTModule) the methods run once, while its graph is made: what they do with tensors becomes
    a part of the graph; where they do what no graph holds, the module runs in PyTorch, with the reason as a warning.
    """

    def __init__(self, start_step=None, end_step=None):
        self._start_step = 0 if start_step is None else start_step
        self._end_step = sys.maxsize if end_step is None else end_step
        for name, step in (("start_step", self._start_step), ("end_step", self._end_step)):
            if isinstance(step, bool) or not isinstance(step, int) or step < 0:
                raise InvalidArgument(f"{name}: expected a number of steps, 0 or more, found {step!r}")
        if self._start_step >= self._end_step:
            raise InvalidArgument(
                f"no step lies in [start_step, end_step) = [{self._start_step}, {self._end_step}): nothing would happen"
            )

    def runs_in(self, step):
        """Whether the subscriber's range holds the step."""
        return self._start_step <= step < self._end_step

    def pre_forward_module_apply_impl(self, run_rtx, module, args, kwargs):
        """Before a module's forward. Returns (args, kwargs)."""
        return args, kwargs

    def pre_forward_tensor_apply_impl(self, run_rtx, module, tensor_idx, tensor):
        """For each tensor among args and kwargs. Returns a tensor."""
        return tensor

    def post_forward_module_apply_impl(self, run_rtx, module, args, outputs):
        """After a module's forward. Returns (args, outputs)."""
        return args, outputs

    def post_forward_tensor_apply_impl(self, run_rtx, module, tensor_idx, tensor):
        """For each tensor among the outputs. Returns a tensor."""
        return tensor

    def pre_forward_outmost_module_apply_impl(self, run_rtx, module, args, kwargs):
        """Before all other hooks of a step. Returns (args, kwargs)."""
        return args, kwargs

    def post_forward_outmost_module_apply_impl(self, run_rtx, module, args, outputs):
        """After all other hooks of a step. Returns (args, outputs)."""
        return args, outputs


def overrides(subscriber, name):
    return getattr(type(subscriber), name) is not getattr(SubscriberBase, name)
