"""Parameters that DeepSpeed's ZeRO stage 3 has partitioned: between uses a parameter is empty, and each process holds
an equal part of its elements as `ds_tensor`.

A graph takes these parts and gathers the parameter where it is read. Gradients leave it whole: DeepSpeed's hooks on the
parameters reduce them, as they do in eager.
"""

import contextlib
import weakref
from dataclasses import dataclass

import torch

from lowtide.errors import UnsupportedModel

from .mixed_precision import Dtypes
from .processes import Processes


@dataclass(frozen=True)
class Partition:
    """How a parameter is partitioned."""

    group: Processes
    ranks: int
    shape: torch.Size  # of the whole parameter

    gives_whole_gradient = is_gathered = True
    layout = None
    dtypes = Dtypes()

    @property
    def length(self):
        """How many elements of what is gathered are the parameter's; padding follows."""
        return self.shape.numel()

    @property
    def part_shape(self):
        return [-(-self.length // self.ranks)]

    def local(self, parameter):
        """The elements of this process."""
        return parameter.ds_tensor


def is_partitioned(tensor):
    return hasattr(tensor, "ds_shape")


def partition_of(parameter):
    """Its Partition. UnsupportedModel where this process has its part in another form than in memory as it is."""
    part, group = getattr(parameter, "ds_tensor", None), getattr(parameter, "ds_process_group", None)
    if part is not None and group is not None:
        partition = Partition(Processes(group), group.size(), torch.Size(parameter.ds_shape))
        expected = torch.Size(partition.part_shape), parameter.dtype, torch.device("cpu")
        if (found := (part.shape, part.dtype, part.device)) == expected:
            return partition
        detail = ": expected a part of shape {}, {} on {}, found shape {}, {} on {}".format(
            *(text for shape, *others in (expected, found) for text in (list(shape), *others))
        )
    else:
        detail = ", and has no ds_tensor or no ds_process_group"
    raise UnsupportedModel(
        f"a parameter of shape {list(parameter.ds_shape)} is partitioned by DeepSpeed's ZeRO stage 3{detail}"
    )


class Placeholders:
    """Of the partitioned parameters of one module. Autograd takes a gradient for a tensor of its shape alone, and the
    parameter is empty: where autograd looks, one element stands there that is seen as all of them. DeepSpeed's getter
    of parameters, which would gather one that is empty, finds it available."""

    def __init__(self, parameters):
        self._parameters = {}  # → what stands in its place
        self._watched = {}  # id → handles of hooks
        elements = {}
        for parameter in parameters:
            element = elements.setdefault(parameter.dtype, torch.zeros((), dtype=parameter.dtype))
            self._parameters[parameter] = element.expand(parameter.ds_shape)

    def gathered(self):
        """In words, that the user has gathered a parameter, and may have changed it for this process; or None."""
        for parameter in self._parameters:
            is_whole = parameter.ds_status.name == "AVAILABLE"
            if is_whole and not parameter.ds_persist and not parameter.ds_active_sub_modules:
                return (
                    f"a parameter of shape {list(parameter.ds_shape)} is gathered around the call: with "
                    "deepspeed.zero.GatheredParameters, or because PyTorch has run the module before"
                )
        return None

    @contextlib.contextmanager
    def in_place(self):
        """While a call is prepared and its forward runs."""
        before = [(parameter, parameter.data, parameter.ds_status) for parameter in self._parameters]
        try:
            for parameter, stand_in in self._parameters.items():
                parameter.data = stand_in
                parameter.ds_status = type(parameter.ds_status).AVAILABLE
                if parameter.requires_grad and id(parameter) not in self._watched:
                    self._watched[id(parameter)] = _watch(parameter, stand_in)
            yield
        finally:
            for parameter, data, status in before:
                parameter.data, parameter.ds_status = data, status

    def __del__(self):
        for handles in self._watched.values():
            for handle in handles:
                handle.remove()


def _watch(parameter, stand_in):
    """Hooks with which it stands there while autograd accumulates the gradient."""
    empty, parameter = stand_in.new_empty(0), weakref.ref(parameter)

    def before(gradient):
        if (found := parameter()).shape != stand_in.shape:
            found.data = stand_in

    def after(found):
        if found.data_ptr() == stand_in.data_ptr():
            found.data = empty

    return parameter().register_hook(before), parameter().register_post_accumulate_grad_hook(after)


def computes(function):
    """What a torch.autograd.Function of DeepSpeed's computes: it gathers and frees its weight besides."""
    is_linear = (function.__module__, function.__name__) == (
        "deepspeed.runtime.zero.linear",
        "LinearFunctionForZeroStage3",
    )
    return torch.ops.aten.linear.default if is_linear else None
