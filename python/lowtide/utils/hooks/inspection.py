"""Statistics of values inside of a forward."""

import torch

from lowtide.errors import InvalidArgument

from .manager import GlobalSubscriberManager, in_backward
from .statistics_subscriber import StatisticsSubscriber

_NO_MODULE = -1


def inspect_activation(name, tensor):
    """Writes the statistics of a tensor inside of a forward, and of its gradient, into the files <name>_forward and
    <name>_backward of the present step. Returns the tensor.

    RuntimeError without a subscribed StatisticsSubscriber. A name that a step uses twice warns, and its file holds the
    last tensor.
    """
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"inspect_activation takes a name that is not empty, found {name!r}")
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgument(f"inspect_activation('{name}'): expected a tensor, found a {type(tensor).__name__}")
    try:
        subscriber = GlobalSubscriberManager.get_subscriber(StatisticsSubscriber)
    except RuntimeError:
        raise RuntimeError(
            f"inspect_activation('{name}') needs a StatisticsSubscriber: "
            "GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber(output_dir)])"
        ) from None
    if subscriber.runs_in(GlobalSubscriberManager.current_step) and not in_backward():
        return subscriber.inspect(name, tensor, _NO_MODULE)
    return tensor
