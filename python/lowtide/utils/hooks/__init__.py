"""Hooks on the modules of a model, and statistics of what they return: to find where two runs part.

from lowtide.utils.hooks import GlobalSubscriberManager, StatisticsSubscriber

GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber("out", end_step=5)])
"""

from lowtide.ported_names import missing

from ._zero_offload_subscriber import configure_ort_compatible_zero_stage3
from .inspection import inspect_activation
from .manager import GlobalSubscriberManager
from .statistics_subscriber import StatisticsSubscriber
from .subscriber import SubscriberBase

__all__ = [
    "GlobalSubscriberManager",
    "StatisticsSubscriber",
    "SubscriberBase",
    "configure_ort_compatible_zero_stage3",
    "inspect_activation",
]


def __getattr__(name):
    raise missing(__name__, name)
