"""A user's module of code: what modules of the tests name from another file."""

SCALE = 2.0


def scaled(a):
    return a * SCALE


def factor():
    """Calls nothing of PyTorch's."""
    return SCALE
