"""What trains a module on several processes, as far as its calls can tell: they meet once, and agree before calls."""

from torch.nn.parallel import DistributedDataParallel

from .agreement import Agreement
from .gradient_order import GradientOrder, reducing_group
from .meeting import Meeting
from .partitions import is_partitioned
from .roll_call import call_roll


class Together:
    """Of one module, for all its calls with gradients, or for all without."""

    def __init__(self, module, with_gradients, gathers_partitions):
        """`gathers_partitions()`: whether graphs gather what DeepSpeed's ZeRO stage 3 has partitioned."""
        self._module, self._with_gradients = module, with_gradients
        self._gathers_partitions = gathers_partitions
        self._agreement = None  # known from the first call on
        self._one = None  # a parameter, one that is trained if there is any
        self._meeting = None  # of DistributedDataParallel's processes; False: there is nobody to meet

    @property
    def meeting(self):
        """Of the processes that train the module, or None."""
        return self._meeting or (self._agreement.meeting if self._agreement is not None else None)

    def agreement(self):
        """Agreement or GradientOrder of the processes before each call, or None where they need none.
        DifferentProcesses where they are not alike."""
        if self._agreement is None or self._is_outdated():
            self._agreement = self._found()
        if self._meeting is None and self._with_gradients:
            self._meet_in_data_parallel()
        return self._agreement if self._agreement.is_needed else None

    def _is_outdated(self):
        """Whether DeepSpeed has taken the parameters since."""
        if self._agreement.is_needed:
            return False
        return self._one is not None and (is_partitioned(self._one) or reducing_group(self._one) is not None)

    def _found(self):
        parameters = list(self._module.parameters())
        self._one = next((each for each in parameters if each.requires_grad), next(iter(parameters), None))
        group = reducing_group(self._one) if self._one is not None and self._with_gradients else None
        if group is not None:
            return GradientOrder(self._module, group)
        return Agreement(self._module, self._gathers_partitions())

    def _meet_in_data_parallel(self):
        """DistributedDataParallel does not tell the module that it wraps; PyTorch itself looks here where it compiles
        a module. Without it processes train as ever, and do not meet."""
        outer = getattr(DistributedDataParallel, "_active_ddp_module", None)
        if outer is None or not self._module.training:
            return
        self._meeting = Meeting.of(outer.process_group, f"data parallel/{type(self._module).__name__}") or False
        if self._meeting:
            call_roll(self._meeting, self._module, frozen_may_differ=outer.find_unused_parameters)
