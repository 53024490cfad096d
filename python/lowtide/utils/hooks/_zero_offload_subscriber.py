"""ORTModule's name of the module for DeepSpeed's ZeRO stage 3."""

from lowtide import environment
from lowtide.errors import InvalidArgument
from lowtide.ported_names import missing

__all__ = ["configure_ort_compatible_zero_stage3"]


def configure_ort_compatible_zero_stage3(debug=False, stats_output_dir=None, stats_overwrite=False):
    """Switches ORTMODULE_ENABLE_ZERO_STAGE3 on, as it is unless the environment switches it off. Nothing in DeepSpeed
    is patched: steps of the plan gather parameters. InvalidArgument with `debug`: subscribe a StatisticsSubscriber."""
    if debug or stats_output_dir is not None or stats_overwrite:
        raise InvalidArgument(
            "configure_ort_compatible_zero_stage3 writes no statistics: write GlobalSubscriberManager.subscribe(model, "
            "[StatisticsSubscriber(stats_output_dir, override_output_dir=stats_overwrite)])"
        )
    environment.set_again({"ORTMODULE_ENABLE_ZERO_STAGE3": "1"})


def __getattr__(name):
    raise missing(__name__, name)
