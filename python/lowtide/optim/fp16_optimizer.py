"""ORTModule's FP16_Optimizer, for programs that call it."""


def FP16_Optimizer(optimizer, **_):
    """Returns the optimizer as it is. ORTModule's put CUDA kernels into the FP16_Optimizer of Apex, DeepSpeed and
    Megatron-LM, and left any other optimizer alone; there are no CUDA kernels in this build."""
    return optimizer
