"""ORTModule's name of the module, to which its convergence guide links."""

from .statistics_subscriber import StatisticsSubscriber

__all__ = ["StatisticsSubscriber"]
