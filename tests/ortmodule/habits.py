"""A user's module of code: what modules of the tests name from another file."""

SCALE = 2.0


def scaled(a):
    return a * SCALE


def factor():
    """Calls nothing of PyTorch's."""
    return SCALE


def assertion_of_a_number(m, x, classes):
    """Here, where pytest leaves the assertion as it is."""
    assert not classes.max().item() >= 5, "no such class"
    return m.n(m.l(x)) * classes.sum()
