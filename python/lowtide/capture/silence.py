"""What PyTorch says of its own while it exports."""

import contextlib
import logging
import warnings

from lowtide.log import exporter_is_heard


@contextlib.contextmanager
def exporter_silenced():
    """PyTorch logs and warns about an export that fails or specialises; what matters comes with our own reason. Only
    PyTorch's own Python code is silenced, never a stream: a debugger in forward has the terminal."""
    if exporter_is_heard():
        yield
        return
    from torch.export import _trace  # slow to import, and an export has imported it

    # One level for loggers to come: each change of a level empties the caches of all loggers there are.
    above = logging.getLogger("torch")
    level = above.level
    above.setLevel(logging.CRITICAL + 1)
    names = [name for name in logging.root.manager.loggerDict if name.startswith("torch.")]
    heard = [found for found in map(logging.getLogger, names) if not found.disabled]
    for found in heard:
        found.disabled = True
    # A failing export prints its half-made graph, on a line of its own without a switch.
    _trace.print = lambda *_, **__: None
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"torch(\.|$)")
            # Said in the name of contextlib's frame: recurrent layers put their own weights back into a list.
            warnings.filterwarnings("ignore", message="The tensor attributes? .* assigned during export")
            yield
    finally:
        del _trace.print
        above.setLevel(level)
        for found in heard:
            found.disabled = False
