"""The optimizers that programs written for ORTModule import. Any of torch.optim's does as well."""

from lowtide.ported_names import missing

from .fp16_optimizer import FP16_Optimizer
from .fused_adam import AdamWMode, FusedAdam

__all__ = ["AdamWMode", "FP16_Optimizer", "FusedAdam"]


def __getattr__(name):
    raise missing(__name__, name)
