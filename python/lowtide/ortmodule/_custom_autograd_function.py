"""ORTModule's switch of custom functions, under the name that programs import."""

from lowtide import environment


def enable_custom_autograd_support(to_enable=True):
    """Custom Functions run inside the engine's step, which they do unless this or ORTMODULE_ENABLE_CUSTOM_AUTOGRAD is
    off; then models that have one run in PyTorch. It holds for graphs that are captured later."""
    environment.set_again({"ORTMODULE_ENABLE_CUSTOM_AUTOGRAD": "1" if to_enable else "0"})
